"""Time the sum of a tensor over all processes; README.md says what is reported."""

from hpcml_client.recipe_start import start

if __name__ == "__main__":
    start("allreduce")
