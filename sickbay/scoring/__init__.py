"""Pure scoring on columns: one implementation for one node and for 50,000."""
