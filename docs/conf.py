"""Sphinx's settings: MyST pages, furo's looks, and every warning an error (see the Makefile)."""

from __future__ import annotations

import hpcml

project = "hpcml"
author = "The hpcml authors"
project_copyright = "The hpcml authors"
release = version = hpcml.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"hpcml {release}"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_typehints = "none"  # docstrings say what types do not; the types themselves are many and not on these pages
autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
