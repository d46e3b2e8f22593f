"""``tenure chaos``: somebody's own executor between processes, servers and wires that fail."""
