"""The simulated fleet: one process that is the outside world, below the process boundary.

Product code meets it only through its HTTP pages, its files and the tools it puts on PATH. What may
be imported from here is the configuration, the names of the fault kinds and the small HTTP client.
"""
