"""Transfers in a double-entry ledger: ordered and enqueued together, booked once."""
