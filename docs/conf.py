"""Sphinx's settings: MyST pages, furo's looks, and every warning an error (see the Makefile)."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

import hpcml

sys.path.insert(0, str(Path(__file__).parent))
from generate import help_of_all

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


def setup(app: Sphinx) -> None:
    """Add what the commands' ``--help`` prints to the page on the command line."""

    def add_help(_: Sphinx, page: str, source: list[str]) -> None:
        if page == "reference/cli":
            source[0] += help_of_all()

    app.connect("source-read", add_help)
