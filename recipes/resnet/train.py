"""Train a ResNet in the precision that the run asks for; README.md says what is reported."""

from hpcml_client.recipe_start import start

if __name__ == "__main__":
    start("resnet")
