"""Guards carry the fencing token to each system that an executor writes to."""
