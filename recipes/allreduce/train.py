"""Time the sum of a tensor over all processes; README.md says what is reported."""

from hpcml_train.start import start

if __name__ == "__main__":
    start("allreduce")
