"""Values of several trainings in one run, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hpcml.agent.metrics.printed import StdoutScanner
from hpcml.model.metric_sources import MetricRule

RULE = MetricRule(pattern=r"step (?P<step>\d+) loss (?P<value>\S+)", name="loss")


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
    ],
)
def test_several_trainings_are_known_by_a_metric_that_is_back_where_it_began(
    tmp_path: Path, printed: Callable[[], Iterator[str]], mixed: dict[str, int]
) -> None:
    path = tmp_path / "stdout.log"
    path.write_text("\n".join(printed()) + "\n")
    scanner = StdoutScanner(path=path, rules=[RULE])
    assert list(scanner.scan(to_the_end=True))

    assert scanner.trainings.mixed() == mixed
