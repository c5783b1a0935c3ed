"""Studies as they go wrong in the field, from journals through the store to what `compare` says.

How often a verdict is false is simulated: the truth lies at the margin, or half of an arm's runs diverge, or the metric
moves in steps. The other studies have one flaw each, and one right answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcml
from hpcml.analysis.compare.result import Row
from hpcml.api.store import Store
from hpcml.errors import ComparisonError
from hpcml.model.precision import PrecisionName
from hpcml.model.run import Objective, Precision
from tests.effort import times
from tests.store.building import Journal, make_run_dir

GOOD = {"equivalent", "better", "non-inferior", "identical"}
SEEDS = 8
MARGIN = 0.01
STUDIES = times(12, 2000)
FACTS = {"device": "cuda", "gpu_model": "NVIDIA A100", "hostname": "n1"}
Values = Sequence[float]
Draw = Callable[[np.random.Generator], tuple[Values, Values]]


def record(  # noqa: PLR0913 - what a run may differ in
    home: Path,
    experiment: str,
    name: PrecisionName,
    seed: int,
    value: float,
    *,
    repeat: int = 0,
    facts: Mapping[str, Any] | None = None,
    last_step: int = 300,
    step_s: float = 0.1,
) -> None:
    """Write down a run that ended with *value*, as agent and program leave it."""
    uid = f"20260528-202640-{experiment}{name.name}s{seed}r{repeat}"
    objective = Objective(margin=MARGIN)
    run_dir = make_run_dir(
        home / "runs", uid, experiment=experiment, precision=Precision(name=name), seed=seed, objective=objective
    )
    agent, rank0 = Journal(run_dir, writer="agent"), Journal(run_dir)
    agent.event("attempt_started")
    agent.event("facts", **{**FACTS, **(facts or {})})
    rank0.event(
        "precision",
        requested=name.name,
        products={"matmul": name.name, "conv": name.name},
        parameters="float32",
        mismatch=False,
        numerics="native",
    )
    for step in range(last_step - 40, last_step):
        rank0.metrics(step, step * step_s, step_time_s=step_s * (1 + 0.01 * (step % 3) + 0.001 * seed))
    rank0.metrics(last_step, last_step * step_s, val_accuracy=value)
    agent.event("attempt_ended", last_step * step_s + 1, state="COMPLETED", exit_code=0, wall_s=last_step * step_s)


def study(home: Path, experiment: str, reference: Values, arm: Values, **told: Any) -> None:  # noqa: ANN401
    for name, values in ((PrecisionName.fp32, reference), (PrecisionName.tf32, arm)):
        for seed, value in enumerate(values):
            record(home, experiment, name, seed, value, **told)


def row_of(store: Store, experiment: str, **asked: Any) -> Row:  # noqa: ANN401
    return store.compare(f"experiment={experiment}", **asked).cells[0].rows[1]


def at_the_margin(noise: np.random.Generator) -> tuple[Values, Values]:
    common = noise.normal(0, 0.004, SEEDS)
    reference, arm = (0.9 + common + noise.normal(0, 0.004, SEEDS) for _ in range(2))
    return reference.tolist(), (arm - MARGIN).tolist()


def diverging(noise: np.random.Generator) -> tuple[Values, Values]:
    values = 0.9 + noise.normal(0, 0.0003, SEEDS)
    lost = noise.permutation(SEEDS)[: SEEDS // 2]
    return values.tolist(), [math.nan if seed in lost else value for seed, value in enumerate(values)]


def in_steps(noise: np.random.Generator) -> tuple[Values, Values]:
    reference, arm = at_the_margin(noise)
    step = MARGIN / 3
    return tuple([round(value / step) * step for value in values] for values in (reference, arm))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("draw", "rate"), [(at_the_margin, 0.05), (diverging, 0.0), (in_steps, 0.05)], ids=["margin", "diverging", "steps"]
)
def test_nothing_good_is_said_falsely_of_what_journals_hold(tmp_path: Path, draw: Draw, rate: float) -> None:
    for number in range(STUDIES):
        reference, arm = draw(np.random.default_rng([number, SEEDS]))
        study(tmp_path, f"x{number}", reference, arm)
    store = hpcml.open_store(home=tmp_path)

    said = [row_of(store, f"x{number}").verdict for number in range(STUDIES)]

    false = sum(verdict in GOOD for verdict in said)
    assert false <= STUDIES * rate + 3.5 * math.sqrt(STUDIES * rate * (1 - rate)), said
    assert draw is not diverging or set(said) == {"unstable"}


CLOSE = [0.9 + 0.0001 * ((7 * seed) % 5) for seed in range(SEEDS)]


def test_a_sound_study_has_its_verdict(tmp_path: Path) -> None:
    study(tmp_path, "sound", CLOSE, [value + 0.0001 * (seed % 2) for seed, value in enumerate(CLOSE)])

    row = row_of(hpcml.open_store(home=tmp_path), "sound")

    assert (row.verdict, row.n_ok) == ("equivalent", SEEDS)
    assert row.speed is not None
    assert row.speed.speedup == pytest.approx(1.0)


def test_the_order_of_seeds_in_an_arm_means_nothing_and_a_repeated_seed_is_one(tmp_path: Path) -> None:
    for name in (PrecisionName.fp32, PrecisionName.tf32):
        for seed in (reversed if name is PrecisionName.tf32 else list)(range(SEEDS)):
            record(tmp_path, "swapped", name, seed, CLOSE[seed])
    study(tmp_path, "repeated", CLOSE[:2], CLOSE[:2])
    for repeat in range(1, 10):
        record(tmp_path, "repeated", PrecisionName.tf32, 0, CLOSE[0] + 0.0001 * repeat, repeat=repeat)
    store = hpcml.open_store(home=tmp_path)

    assert row_of(store, "swapped").verdict == "identical"
    repeated = row_of(store, "repeated")
    assert (repeated.verdict, repeated.seeds) == ("inconclusive", (0, 1))
    assert any("same seeds" in flag.text for flag in repeated.flags)


@pytest.mark.parametrize(
    ("told", "word"),
    [
        ({"facts": {"code": "0" * 64}}, "code"),
        ({"last_step": 200}, "last_step"),
        ({"facts": {"nccl": "2.19"}}, "nccl"),
        ({"facts": {"gpu_model": "Tesla V100"}}, "gpu_model"),
    ],
    ids=lambda told: told if isinstance(told, str) else "",
)
def test_arms_that_differ_in_more_than_their_name_are_refused_or_say_so_first(
    tmp_path: Path, told: dict[str, Any], word: str
) -> None:
    usual: dict[str, Any] = {"facts": {"code": "1" * 64, "nccl": "2.18"}}
    for name in (PrecisionName.fp32, PrecisionName.tf32):
        for seed, value in enumerate(CLOSE):
            own = told if name is PrecisionName.tf32 else {}
            more = {**usual, **own, "facts": {**usual["facts"], **FACTS, **own.get("facts", {})}}
            record(tmp_path, "unequal", name, seed, value, **more)
    store = hpcml.open_store(home=tmp_path)

    with pytest.raises(ComparisonError, match=word):
        store.compare("experiment=unequal")

    (cell,) = store.compare("experiment=unequal", allow=[word]).cells
    assert any(word in str(discrepancy) for discrepancy in cell.confounders)


def test_an_arm_on_a_node_of_its_own_has_no_interval_of_its_speed(tmp_path: Path) -> None:
    study(tmp_path, "nodes", CLOSE, [])
    for seed, value in enumerate(CLOSE):
        record(tmp_path, "nodes", PrecisionName.tf32, seed, value, facts={"hostname": "n2"}, step_s=0.05)

    row = row_of(hpcml.open_store(home=tmp_path), "nodes")

    assert row.speed is not None
    assert row.speed.speedup == pytest.approx(2.0)
    assert (row.speed.speedup_unit, row.speed.speedup_ci95) == ("none", None)


def test_a_name_that_the_arithmetic_does_not_bear_out_is_no_arm(tmp_path: Path) -> None:
    study(tmp_path, "named", CLOSE, [value + 0.02 for value in CLOSE])
    for run_dir in (tmp_path / "runs" / "named").glob("*tf32*"):
        (journal,) = run_dir.glob("journal/*rank0*")
        text = journal.read_text()
        assert '"matmul": "tf32"' in text
        journal.write_text(
            text.replace('"matmul": "tf32"', '"matmul": "fp32"').replace('"conv": "tf32"', '"conv": "fp32"')
        )

    assert row_of(hpcml.open_store(home=tmp_path), "named").verdict == "not as requested"
