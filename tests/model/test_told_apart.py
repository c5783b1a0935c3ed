from hpcml.model.record_keys import value_of
from hpcml.model.told_apart import what_differs
from tests.analysis.recorded_runs import run


def test_runs_of_an_experiment_are_told_apart_by_what_is_swept_in_it() -> None:
    runs = [
        run(uid=str(at), seed=seed, experiment="a", params={"workload.args.lr": rate, "workload.args.b": "8"})
        for at, (seed, rate) in enumerate([(0, "0.1"), (0, "1e-1"), (1, "0.5")])
    ]
    other = run(uid="other", experiment="b", params={"workload.args.lr": "7"})

    assert what_differs([*runs, other]) == {"0": "lr=0.1", "1": "lr=0.1", "2": "lr=0.5"}
    assert what_differs(runs[:2]) == {}


def test_a_flag_that_is_called_as_something_of_ours_is_told_by_the_name_that_selects_it() -> None:
    runs = [run(uid=word, params={"workload.args.layout": word, "layout.name": "nchw"}) for word in ("x", "y")]

    told = what_differs(runs)

    assert told == {"x": "args.layout=x", "y": "args.layout=y"}
    assert value_of(runs[0], "args.layout", now=0.0) == "x"
