"""Pure decisions of the relay: what to publish next, and what each outcome means."""
