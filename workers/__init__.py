"""Processes: queues, wiring, control and node workers."""
