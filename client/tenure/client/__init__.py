"""For applications: submit tasks and wait for their results."""
