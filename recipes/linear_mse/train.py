"""Fit a line with one dense layer; README.md says what is reported."""

from hpcml_train.start import start

if __name__ == "__main__":
    start("linear_mse", learning_rate=0.2, tensorflow="tensorflow_line")
