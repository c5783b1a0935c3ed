"""Train an LSTM on sequences in the precision that the run asks for; README.md says what is reported."""

from hpcml_train.start import start

if __name__ == "__main__":
    start("lstm", tensorflow="tensorflow_training")
