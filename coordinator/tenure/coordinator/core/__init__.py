"""Pure decisions of the coordinator: no clock, no ids of its own, no input or output."""
