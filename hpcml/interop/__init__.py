"""Runs in the formats of other tools, and theirs in ours: a module for each format, and each loads its own library."""
