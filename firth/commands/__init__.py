"""Subcommands in groups, for `cli.py` to list: each file holds those of one kind."""
