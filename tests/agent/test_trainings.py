"""Values of several trainings in one run, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from hpcml.agent.metrics.follow import MetricsFollower
from hpcml.agent.metrics.printed import StdoutScanner
from hpcml.model.metric_sources import MetricRule

RULES = [
    MetricRule(pattern=rf"step (?P<step>\d+).* {name} (?P<{name}>\S+)") for name in ("loss", "lr", "eta", "elapsed")
]
COUNTED = [MetricRule(pattern=r"loss (?P<loss>\S+)")]  # a rule that reads no step


TABLES = {
    "a loop": "step,loss\n" + "".join(f"{step},{1 / (step + 1)}\n" for _ in range(2) for step in range(8)),
    "rewards of episodes": "episode,step,reward\n" + "".join(f"{n},{t},{t}\n" for n in range(3) for t in range(8)),
    "folds": "fold,epoch,loss\n" + "".join(f"{n},{t},{1 / (t + 1)}\n" for n in range(3) for t in range(8)),
}


def training(*, first: int = 0, last: int = 8, of: float = 1.0, before: str = "") -> Iterator[str]:
    yield from (f"{before}step {step} loss {of / (step + 1):.4f}" for step in range(first, last))


def looped() -> Iterator[str]:
    for rate in (1.0, 3.0, 2.0):
        yield from training(of=rate)


def looped_by_epochs() -> Iterator[str]:
    for _ in range(2):
        for epoch in range(1, 6):
            yield f"Epoch {epoch}/5"
            yield f"step {epoch} loss {1 / epoch:.4f}"


def batches_of_epochs() -> Iterator[str]:
    losses = iter([1 / (n + 1) for n in range(40)])
    for _ in range(5):
        yield from (f"step {step} loss {next(losses):.4f}" for step in range(8))


def numbered_epochs() -> Iterator[str]:
    for epoch in range(3):
        yield from training(before=f"Epoch: [{epoch}] ")


def folds() -> Iterator[str]:
    for fold in range(3):
        yield f"Fold {fold + 1}/3"
        yield from training()


def restarted() -> Iterator[str]:
    yield from training(last=8)
    yield from training(first=4)


def with_tests_between() -> Iterator[str]:
    for _ in range(3):
        yield from training()
        yield from ("step 0 loss 0.13", "step 1 loss 0.12")


def with_clocks_and_rates() -> Iterator[str]:
    for epoch in range(3):
        for step in range(8):
            loss, rate = 1 / (8 * epoch + step + 1), 0.1 * (1 - step / 8)
            yield f"step {step} loss {loss:.4f} lr {rate:.4f} eta {8 - step}.0 elapsed {step}.5"


def with_sums() -> Iterator[str]:
    for _ in range(3):
        yield from (f"step {step} loss {0.5 * (step + 1):.4f}" for step in range(8))


@pytest.mark.parametrize(
    ("printed", "mixed"),
    [
        (looped, {"loss": 3}),
        (looped_by_epochs, {"loss": 2}),
        (batches_of_epochs, {}),
        (numbered_epochs, {}),
        (folds, {}),
        (restarted, {}),
        (with_tests_between, {}),
        (with_clocks_and_rates, {}),
        (with_sums, {}),
    ],
)
def test_several_trainings_are_known_by_a_metric_that_is_back_where_it_began(
    tmp_path: Path, printed: Callable[[], Iterator[str]], mixed: dict[str, int]
) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("\n".join(printed()) + "\n")
    scanner = StdoutScanner(path=path, rules=RULES)
    assert list(scanner.scan(to_the_end=True))

    assert scanner.trainings.mixed() == mixed


def epochs(*, of: float = 1.0, before: str = "") -> Iterator[str]:
    for epoch in range(1, 7):
        yield f"{before}Epoch {epoch}/6"
        yield from (f"batch {n} loss {of / (epoch + n / 4):.4f}" for n in range(4))


def looped_epochs() -> Iterator[str]:
    for rate in (1.0, 2.0, 3.0):
        yield f"lr {rate}"
        yield from epochs(of=rate)


def folds_of_epochs() -> Iterator[str]:
    for fold in range(3):
        yield from epochs(before=f"Fold {fold} ")


def with_tests_of_epochs() -> Iterator[str]:
    for epoch, line in enumerate(epochs(), 1):
        yield line
        yield f"Test of epoch {epoch}: loss 0.1"


@pytest.mark.parametrize(
    ("printed", "mixed"),
    [
        (looped_epochs, {"loss": 3}),
        (epochs, {}),
        (folds_of_epochs, {}),
        (with_tests_of_epochs, {}),
        (batches_of_epochs, {}),
        (numbered_epochs, {}),
    ],
)
def test_several_trainings_are_known_by_their_epochs_where_a_rule_reads_no_step(
    tmp_path: Path, printed: Callable[[], Iterator[str]], mixed: dict[str, int]
) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("\n".join(printed()) + "\n")
    scanner = StdoutScanner(path=path, rules=COUNTED)
    assert list(scanner.scan(to_the_end=True))

    assert scanner.trainings.mixed() == mixed


@pytest.mark.parametrize("rows", TABLES)
def test_a_table_that_counts_episodes_or_folds_is_none_of_several_trainings(tmp_path: Path, rows: str) -> None:
    told: list[str] = []
    (tmp_path / "metrics.csv").write_text(TABLES[rows])

    class Journal:
        def metrics(self, step: int, values: Mapping[str, float], *, at: float | None = None) -> None:
            pass

        def event(self, name: str, details: Mapping[str, Any] | None = None) -> None:
            told.append(f"{name} {details}")

        def close(self) -> None:
            pass

    MetricsFollower(root=tmp_path, wanted=["auto"], journal=Journal(), journals=tmp_path, attempt=0).read_left(
        0.0, has_completed=True
    )

    assert any(event.startswith("metrics_trouble ") for event in told) is (rows == "a loop")
