"""Train a U-Net in the precision that the run asks for; README.md says what is reported."""

from hpcml_train.start import start

if __name__ == "__main__":
    start("unet")
