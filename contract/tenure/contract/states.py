"""States of the things that cross a process border. Standard library only: pure cores import this."""
