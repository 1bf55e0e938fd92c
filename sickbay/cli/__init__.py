"""The command line of sickbay."""
