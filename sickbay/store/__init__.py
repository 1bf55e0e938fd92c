"""The store: tables, repository, reports and migrations."""
