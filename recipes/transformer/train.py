"""Train a transformer on a text in the precision that the run asks for; README.md says what is reported."""

from hpcml_client.recipe_start import start

if __name__ == "__main__":
    start("transformer", jax="jax_training")
