"""Names and shapes that cross processes: every field is documented, none carries a secret."""
