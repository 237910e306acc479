"""The subcommands, one function each, in files by what they are about. `app.py` lists them."""
