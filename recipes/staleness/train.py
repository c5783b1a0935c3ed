"""Simulate data parallelism with stale gradients in one process; README.md says what is reported."""

from hpcml_client.recipe_start import start

if __name__ == "__main__":
    start("staleness")
