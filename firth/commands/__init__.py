"""The subcommands, one function each, in files by what they are about. `cli.py` lists them."""
