"""Pure decisions of the executor: intake of messages, and whether it may still act."""
