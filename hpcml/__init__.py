"""Describe, submit, watch and compare ML runs on HPC clusters."""

__version__ = "0.1.0"
