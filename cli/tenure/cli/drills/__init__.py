"""Faults on purpose: what the demo and the crash tests strike with."""
