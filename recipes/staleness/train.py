"""Simulate data parallelism with stale gradients in one process; README.md says what is reported."""

from hpcml_train.start import start

if __name__ == "__main__":
    start("staleness", learning_rate=0.5)
