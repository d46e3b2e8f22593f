"""Workloads in processes of their own: started inside limits, killed as a group."""
