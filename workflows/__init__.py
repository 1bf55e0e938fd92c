"""Deterministic workflows: what happens, in what order."""
