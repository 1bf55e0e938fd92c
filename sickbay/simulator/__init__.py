"""A fleet below the process boundary."""
