"""The only place of the coordinator that knows PostgreSQL."""
