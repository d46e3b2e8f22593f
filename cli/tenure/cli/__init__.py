"""The ``tenure`` command, the local stack and the demo. Only this package may import all others."""
