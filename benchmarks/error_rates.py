"""How often a verdict of `hpcml compare` is wrong, or right: simulated studies, judged by the comparison itself.

    python benchmarks/error_rates.py            # 2000 studies a cell, some minutes
    python benchmarks/error_rates.py 10000

Each study is a set of run records as the store hands them out; `compare` sorts, pairs, tests and words them. Values are
normal unless a table says otherwise, and seeds independent. It prints the tables of docs/statistics.md as Markdown; all
numbers are per cent of studies, with a Monte-Carlo error of 0.5 at 2000 studies and a rate of 5 %.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcml.analysis.compare.comparison import compare
from hpcml.analysis.compare.result import ComparisonRequest, Interval
from hpcml.model.records import MetricSummary, Point, RunRecord
from hpcml.model.state import State

Values = NDArray[np.float64]
Study = tuple[Mapping[int, float | None], Mapping[int, float | None]]  # reference and arm by seed; None: ended in nan
Draw = Callable[[np.random.Generator], Study]
Found = TypeVar("Found")

METRIC = "val_accuracy"
GOOD = ("equivalent", "better", "non-inferior", "identical")
_PARAMS = {"model.name": "m", "data.name": "d", "objective.metric": METRIC, "objective.goal": "max"}
_PLAIN = ComparisonRequest()


def record(level: str, seed: int, value: float | None, settings: Mapping[str, object]) -> RunRecord:
    """Return a run that ended with *value* of the metric; None: with nan."""
    summary = MetricSummary(
        name=METRIC,
        n=1,
        n_nonfinite=int(value is None),
        first=value,
        last=value,
        last_step=1,
        min=0.0,  # every run began at chance
        min_step=1,
        max=value,
        max_step=1,
        mean=value,
    )
    return RunRecord(
        uid=f"{level}-{seed:04}",
        path="",
        experiment="simulated",
        name=None,
        spec_hash="",
        state=State.COMPLETED,
        reason=None,
        exit_code=0,
        attempt=1,
        scheduler="local",
        job_id=None,
        array_index=None,
        job_name=None,
        is_shared=False,
        submission=None,
        is_settled=True,
        cause=None,
        submitted_at=None,
        t_start=None,
        t_end=None,
        wall_s=None,
        seed=seed,
        precision=level,
        precision_effective=level,
        numerics="emulated",
        git_commit=None,
        git_dirty=None,
        params={**_PARAMS, **settings, "precision.name": level, "seed": seed},
        metrics={METRIC: summary},
    )


def verdict_of(study: Study, settings: Mapping[str, object]) -> str:
    """Return the verdict of `compare` on one study of two arms."""
    runs = [
        record(level, seed, value, settings)
        for level, values in zip(("fp32", "tf32"), study, strict=True)
        for seed, value in values.items()
    ]
    if all(run.metrics[METRIC].last is None for run in runs):
        return "unstable"
    return compare(runs, {}, _PLAIN).cells[0].rows[1].verdict


def shares(draw: Draw, studies: int, settings: Mapping[str, object], *, seed: int = 1) -> Counter[str]:
    """Return how many of *studies* got each verdict, in per cent."""
    noise = np.random.default_rng(seed)
    counts = Counter(verdict_of(draw(noise), settings) for _ in range(studies))
    return Counter({word: 100 * n / studies for word, n in counts.items()})


def pairs(noise: np.random.Generator, n: int, rho: float) -> tuple[Values, Values]:
    """Return two arms of *n* standard normal values with the correlation *rho*, which may be negative."""
    one, other = noise.normal(size=(2, n))
    return one, rho * one + math.sqrt(1 - rho * rho) * other


def by_seed(values: Sequence[float] | Values, seeds: Sequence[int] | None = None) -> dict[int, float | None]:
    """Return *values* by *seeds*, by default 0, 1, 2 ..."""
    return dict(zip(range(len(values)) if seeds is None else seeds, map(float, values), strict=True))


def diverging(n: int, rates: tuple[float, float], spread: float = 0.3) -> Draw:
    """Return studies of which a run of the arm, and of the reference, diverges at *rates*; survivors do not differ."""

    def draw(noise: np.random.Generator) -> Study:
        lost = noise.random((2, n)) < np.array(rates)[::-1, None]
        values = 10 + spread / math.sqrt(2) * noise.normal(size=(2, n))
        one, other = (
            {seed: None if gone[seed] else float(of[seed]) for seed in range(n)}
            for of, gone in zip(values, lost, strict=True)
        )
        return one, other

    return draw


def on_a_grid(n: int, sd: float, rho: float, *, samples: int = 355, steps_worse: int = 7) -> Draw:
    """Return studies of accuracies in steps of 1/*samples*, the arm worse by so many steps."""

    def draw(noise: np.random.Generator) -> Study:
        reference, arm = pairs(noise, n, rho)
        start = 337 + noise.random()  # the mean lies anywhere between two steps
        rounded = [
            np.clip(np.round(start - worse + sd * samples * of), 0, samples) / samples
            for of, worse in ((reference, 0), (arm, steps_worse))
        ]
        return by_seed(rounded[0]), by_seed(rounded[1])

    return draw


def partly_shared(shared: int, more_arm: int, more_reference: int, rho: float, difference: float) -> Draw:
    """Return studies of arms that share some seeds; each has so many more of its own."""

    def draw(noise: np.random.Generator) -> Study:
        one, other = pairs(noise, shared, rho)
        reference = by_seed(
            [*one, *noise.normal(size=more_reference)], [*range(shared), *range(100, 100 + more_reference)]
        )
        arm = by_seed([*other, *noise.normal(size=more_arm)], [*range(shared), *range(200, 200 + more_arm)])
        return reference, {seed: None if value is None else value + difference for seed, value in arm.items()}

    return draw


def plain(n: int, rho: float, difference: float) -> Draw:
    """Return studies of two normal arms of sd 1 whose means differ by *difference*."""
    return partly_shared(n, 0, 0, rho, difference)


def skewed(n: int, spreads: tuple[float, float], *, log_margin: float) -> Draw:
    """Return studies of errors exp(s z) of which less is better; the arm's median is larger by exp(*log_margin*)."""

    def draw(noise: np.random.Generator) -> Study:
        one, other = pairs(noise, n, 0.9)
        return by_seed(0.05 * np.exp(spreads[1] * one)), by_seed(0.05 * np.exp(spreads[0] * other + log_margin))

    return draw


def tables(studies: int) -> Iterator[str]:
    """Yield the tables of docs/statistics.md, line by line."""
    yield "Two arms that differ by the margin (2 sd), or not at all (margin 1 sd):"
    yield ""
    yield "| n, rho | false `equivalent` | false `worse by more than the margin` | equal arms: `better` or `worse` |"
    yield "|---|---|---|---|"
    for n, rho in ((3, 0.0), (5, 0.9), (10, -0.5)):
        at = shares(plain(n, rho, -2.0), studies, {"objective.margin": 2.0})
        same = shares(plain(n, rho, 0.0), studies, {"objective.margin": 1e-6})
        yield (
            f"| {n}, {rho:g} | {at['equivalent']:.1f} | {at['worse by more than the margin']:.1f} "
            f"| {same['better'] + same['worse'] + same['worse by more than the margin']:.1f} |"
        )
    yield from (
        "",
        "Runs that diverge; survivors do not differ:",
        "",
        "| diverge, arm / reference | 5 seeds: positive, `unstable` | 10 seeds | 20 seeds |",
        "|---|---|---|---|",
    )
    for rates in ((0.1, 0.0), (0.2, 0.0), (0.4, 0.0), (0.4, 0.1), (0.02, 0.02), (0.05, 0.05)):
        cells = []
        for n in (5, 10, 20):
            found = shares(diverging(n, rates), studies, {"objective.margin": 1.0})
            cells.append(f"{sum(found[word] for word in GOOD):.1f}, {found['unstable']:.1f}")
        yield f"| {rates[0]:g} / {rates[1]:g} | {' | '.join(cells)} |"
    yield from (
        "",
        "Accuracy of 355 samples, truly worse by the margin of 7 steps:",
        "",
        "| sd of a run, rho | 2 seeds: `equivalent` | 3 | 5 | 10 |",
        "|---|---|---|---|---|",
    )
    settings = {"objective.margin": 7 / 355}
    for sd, rho in ((0.001, 0.0), (0.003, 0.95), (0.007, 0.9)):
        found_by_n = [shares(on_a_grid(n, sd, rho), studies, settings)["equivalent"] for n in (2, 3, 5, 10)]
        yield f"| {sd:g}, {rho:g} | {' | '.join(f'{share:.1f}' for share in found_by_n)} |"
    yield from (
        "",
        "Arms of which not all seeds are shared, margin 1 sd of a run: false / true `equivalent`:",
        "",
        "| seeds | rho -0.5 | 0 | 0.9 |",
        "|---|---|---|---|",
    )
    for name, shared, arm, reference in (
        ("5 and 4", 4, 0, 1),
        ("10 and 8", 8, 0, 2),
        ("10 and 10, 5 shared", 5, 5, 5),
        ("10 and 3", 3, 0, 7),
        ("5 and 5, 2 shared", 2, 3, 3),
    ):
        cells = []
        for rho in (-0.5, 0.0, 0.9):
            false, true = (
                shares(partly_shared(shared, arm, reference, rho, off), studies, {"objective.margin": 1.0})[
                    "equivalent"
                ]
                for off in (-1.0, 0.0)
            )
            cells.append(f"{false:.1f} / {true:.0f}")
        yield f"| {name} | {' | '.join(cells)} |"
    yield from (
        "",
        "Skewed errors (exp(s z), rho 0.9), the arm worse by the margin: false `equivalent` or `non-inferior`:",
        "",
        "| s, arm / reference | scale linear: 3 seeds | 5 | 10 | scale log: 3 seeds | 5 | 10 |",
        "|---|---|---|---|---|---|---|",
    )
    for spreads in ((0.2, 0.2), (0.4, 0.2), (0.8, 0.2)):
        cells = [f"{false_of_skew(n, spreads, scale, studies):.1f}" for scale in ("linear", "log") for n in (3, 5, 10)]
        yield f"| {spreads[0]:g} / {spreads[1]:g} | {' | '.join(cells)} |"


def false_of_skew(n: int, spreads: tuple[float, float], scale: str, studies: int) -> float:
    """Return how often an arm of skewed errors that is worse by exactly the margin is called good, in per cent."""
    usual, margin = 0.05, 0.02
    arm, reference = (math.exp(spread * spread / 2) for spread in spreads)  # means over medians
    on_log = math.log1p(margin / usual)
    on_linear = math.log((usual * reference + margin) / (usual * arm))  # so that the means differ by the margin
    settings: dict[str, object] = {"objective.goal": "min", "objective.margin": margin}
    if scale == "log":
        settings |= {"objective.scale": "log", "objective.scale_at": usual}
    found = shares(skewed(n, spreads, log_margin=on_log if scale == "log" else on_linear), studies, settings)
    return sum(found[word] for word in GOOD)


TARGET = 0.9
WATCHED_S = 1.3  # the length of every run; the median time to the target is 1 s


def target_rates(n: int, ratio: float, studies: int, *, rho: float = 0.0, seed: int = 1) -> tuple[float, float]:
    """Return how often the log-rank test and the restricted means say that arms differ (5 %), in per cent of studies.

    Logarithms of times are normal with an sd of 0.3; the arm's median is the reference's times *ratio*; about one run
    of five is over before it is there.
    """
    noise = np.random.default_rng(seed)
    said = Counter[str]()
    for _ in range(studies):
        one, other = pairs(noise, n, rho)
        times = {"fp32": np.exp(0.3 * one), "tf32": ratio * np.exp(0.3 * other)}
        runs, curves = [], {}
        for level, of in times.items():
            for at, time_s in enumerate(of):
                run = record(level, at, TARGET, {"objective.margin": 1.0, "objective.target": TARGET})
                runs.append(replace(run, wall_s=WATCHED_S, numerics="native"))
                reached = [Point(1, float(time_s), TARGET)] if time_s < WATCHED_S else []
                curves[run.uid] = [Point(0, 0.0, 0.1), *reached]
        found = _known(compare(runs, {}, _PLAIN, more_curves={METRIC: curves}).cells[0].rows[1].to_target)
        said["log-rank"] += found.p_log_rank is not None and found.p_log_rank < 0.05
        said["means"] += not _holds_zero(_known(found.saved_ci95))
    return 100 * said["log-rank"] / studies, 100 * said["means"] / studies


def _known(found: Found | None) -> Found:
    if found is None:
        raise TypeError
    return found


def _holds_zero(interval: Interval) -> bool:
    return interval.low <= 0 <= interval.high


def tables_beyond(studies: int) -> Iterator[str]:
    """Yield the tables of docs/statistics.md about times to a target, line by line."""
    yield from (
        "",
        "Times to a target, a fifth of them censored, declared to differ: log-rank / restricted means:",
        "",
        "| median times, rho of seeds | 3 seeds | 5 | 10 |",
        "|---|---|---|---|",
    )
    for ratio, rho in ((1.0, 0.0), (1.0, 0.8), (0.7, 0.0), (0.7, 0.8)):
        cells = ["{:.1f} / {:.1f}".format(*target_rates(n, ratio, studies, rho=rho)) for n in (3, 5, 10)]
        yield f"| {ratio:g}, {rho:g} | {' | '.join(cells)} |"


if __name__ == "__main__":
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    for lines in (tables, tables_beyond):
        for line in lines(studies):
            print(line, flush=True)
