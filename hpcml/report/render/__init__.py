"""Renderers: a `hpcml.report.document.Document` as a terminal's text, Markdown, LaTeX, an HTML page, CSV and JSON.

Each is one module, and escapes the texts of the document for its format.
"""
