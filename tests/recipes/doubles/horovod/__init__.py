"""A double of Horovod 0.28 for tests: what hpcml_client asks of it, over torch's gloo."""

__version__ = "double"
