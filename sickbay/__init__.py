"""sickbay: decides whether each node of a GPU fleet may run a job, and gets it repaired if not."""
