"""Calls to a service that costs money, and its bill: each is charged and paid once."""
