"""Ranks that are started as one MPI job on all nodes, watched by an agent on each."""
