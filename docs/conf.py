"""Settings of Sphinx. It builds from the folder that `docs/generate.py --site` gathers, see `make docs`."""

from firth import __version__

project = "firth"
author = "the firth contributors"
copyright = author
version = release = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
default_role = "code"  # docstrings mark names with single backticks
autodoc_default_options = {"members": True, "exclude-members": "__init__, __new__"}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
maximum_signature_line_length = 100
myst_heading_anchors = 4
myst_links_external_new_tab = True

html_theme = "furo"
html_title = "firth"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {"navigation_with_keys": True}
