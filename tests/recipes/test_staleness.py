"""staleness: bound 0 is synchronous SGD bit for bit, and delays do what the recursion says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch
from image_runs import Recorded
from numeric_runs import assert_it_went_on_bit_for_bit, config_of, last, load, run_all

from tests.cli.command_line import Hpcml, said_in_one_line

pytestmark = pytest.mark.torch
DIGITS = {"name": "digits", "holdout": 0.2, "path": None}


def config(precision: str = "fp32", steps: int = 12, **options: object) -> dict[str, object]:
    training = {"steps": steps, "batch_size": 64, "eval_every": 6, "deterministic": True}
    return config_of("staleness", precision, data=DIGITS, training=training, options=options)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recorded]:
    configs = {"amp_fp16": config("amp_fp16", staleness=3)}
    configs["synchronous"] = config(steps=120, staleness=0)
    configs["stale"] = config(steps=120, staleness=8, delay="constant")
    return run_all(tmp_path_factory.mktemp("staleness"), "staleness", configs, left={"amp_fp16": 6})


def train_on_numbers(steps: int, *, workers: int, bound: int, kind: str) -> list[float]:
    """Minimise w**2 from w = 1 with a rate of 0.1; return w after each step."""
    stale = load("staleness", "stale")
    delays = stale.draw_delays(steps, workers=workers, bound=bound, kind=kind, seed=1)
    layer = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
    torch.nn.init.ones_(layer.weight)
    model = stale.StaleWorkers(layer, delays, bound).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        model(torch.ones(workers, 1, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(layer.weight.detach()))
    return found


def test_with_a_constant_delay_weights_follow_the_recursion() -> None:
    weights = [1.0]
    for step in range(20):
        weights.append(weights[-1] - 0.1 * 2 * weights[max(0, step - 3)])

    assert train_on_numbers(20, workers=2, bound=3, kind="constant") == pytest.approx(weights[1:], rel=1e-12)


def test_with_drawn_delays_each_worker_has_its_own() -> None:
    delays = load("staleness", "stale").draw_delays(20, workers=3, bound=2, kind="uniform", seed=1)
    weights = [1.0]
    for step in range(20):
        gradients = [2 * weights[step - min(int(delay), step)] for delay in delays[step]]
        weights.append(weights[-1] - 0.1 * sum(gradients) / 3)

    assert sorted(set(delays.flatten().tolist())) == [0, 1, 2]
    assert train_on_numbers(20, workers=3, bound=2, kind="uniform") == pytest.approx(weights[1:], rel=1e-12)


def test_bound_0_is_synchronous_sgd_bit_for_bit() -> None:
    stale = load("staleness", "stale")
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    twin = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    twin.load_state_dict(plain.state_dict())
    model = stale.StaleWorkers(twin, stale.draw_delays(30, workers=4, bound=0, kind="uniform", seed=0), 0)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.3) for each in (plain, model)]
    for _ in range(30):
        x, labels = torch.randn(32, 8), torch.randint(3, (32,))
        outputs = torch.cat([plain(share) for share in x.chunk(4)])  # the same shares, of the weights as they are
        for logits, optimizer in zip((outputs, model(x)), optimizers, strict=True):
            torch.nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert all(torch.equal(mine, theirs) for mine, theirs in zip(plain.parameters(), twin.parameters(), strict=True))


def test_it_says_that_it_is_simulated_and_how_stale_it_was(runs: dict[str, Recorded]) -> None:
    assert runs["stale"].events["training"]["simulated"] is True
    assert runs["stale"].events["training"]["staleness"] == 8
    # 0, 1 ... 7 in the first eight steps, 8 in the other 112
    assert last(runs["stale"], "simulated_staleness") == pytest.approx((28 + 8 * 112) / 120)
    assert last(runs["synchronous"], "simulated_staleness") == 0.0
    assert runs["stale"].events["work"]["model_flops"] is not None


def test_staleness_costs_accuracy_where_the_rate_is_high(runs: dict[str, Recorded]) -> None:
    assert last(runs["synchronous"], "val_accuracy") > 0.85
    assert last(runs["stale"], "val_accuracy") < last(runs["synchronous"], "val_accuracy") - 0.2


def test_interrupted_it_ends_with_the_same_weights_bit_for_bit(runs: dict[str, Recorded]) -> None:
    assert_it_went_on_bit_for_bit(runs, "amp_fp16")
    assert runs["amp_fp16 gone on"].events["resumed"]["step"] == 7


def test_it_runs_as_a_run_and_a_batch_that_cannot_be_shared_is_refused(
    tmp_path: Path, hpcml_environ: dict[str, str]
) -> None:
    hpcml = Hpcml(hpcml_environ, tmp_path)
    words = ("model=staleness", "training.steps=4", "telemetry.enabled=false")

    refused = hpcml("run", "-m", *words, "model.options.workers=4,5")
    done = hpcml("run", *words, "model.options.workers=4")

    assert refused.returncode == 2
    assert "model.options.workers=5" in said_in_one_line(refused)
    assert done.returncode == 0, done.stderr
    (run,) = hpcml.runs()
    shown = json.loads(hpcml("show", "--json", run["uid"]).stdout)
    assert (run["state"], shown["params"]["objective.metric"]) == ("COMPLETED", "val_accuracy")
