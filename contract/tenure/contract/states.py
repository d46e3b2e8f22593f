"""States of what crosses a process border. Standard library only: pure cores import this."""
