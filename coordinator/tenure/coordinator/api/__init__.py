"""HTTP routes for applications, executors and operators."""
