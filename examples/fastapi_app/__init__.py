"""A shop on FastAPI: an order and the task that invoices it are one transaction."""
