"""Publishes what the coordinator recorded, from the log to RabbitMQ, at least once."""
