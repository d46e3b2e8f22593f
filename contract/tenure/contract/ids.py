"""Types of identifiers. Standard library only: pure cores import this."""
