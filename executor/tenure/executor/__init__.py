"""The worker SDK and runtime: does the work, each task under a lease and its fencing token."""
