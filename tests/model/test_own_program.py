from hpcml.codec import encode, flatten
from hpcml.model.own_program import says_nothing
from tests.conftest import ComposeOne

LOCAL = ("model.name", "data.name", "layout.name", "training.steps", "training.batch_size", "training.learning_rate")


def test_defaults_for_recipes_say_nothing_of_a_program_of_ones_own(compose_one: ComposeOne) -> None:
    params = flatten(encode(compose_one("workload.command=./train")))

    assert [key for key in params if says_nothing(params, key)] == [
        *("model.name", "data.name", "data.needs_path", "data.ships_with", "data.holdout", "layout.name"),
        *(key for key in params if key.startswith("training.")),
        "workload.metrics_from",
    ]


def test_what_was_chosen_and_what_a_recipe_reads_is_said(compose_one: ComposeOne) -> None:
    chosen = ("model.name=mine", "data.name=ours", "layout=nhwc", "training.steps=7", "training.batch_size=8")
    own = flatten(encode(compose_one("workload.command=./train", *chosen, "training.learning_rate=0.1")))
    recipe = flatten(encode(compose_one()))

    assert not [key for key in LOCAL if says_nothing(own, key)]
    assert not [key for key in recipe if says_nothing(recipe, key)]
