"""The rows and guards of the authority in memory: exploration, parity, and the testing kit."""
