"""The authority: decides, and records every decision in PostgreSQL."""
