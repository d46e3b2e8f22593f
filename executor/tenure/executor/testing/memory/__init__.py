"""A fleet without servers: the coordinator's own rules over rows in memory."""
