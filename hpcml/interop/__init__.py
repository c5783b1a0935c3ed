"""Runs in the formats of other tools, and theirs in ours: a module for each format, and each loads its own library.

`hpcml export` reads the runs as an `exported.Export`, and hands it to the module of the format; `output` puts what that
module writes in its place. `hpcml import` uses `mlflow_import`.
"""
