"""How often hpcml's words on speed, scaling and seeds are wrong, by simulation: the tables of docs/statistics.md.

    python benchmarks/speed_rates.py [--trials 10000]

Pure arithmetic on one core, about three minutes. Every section draws from its own fixed seed. Normal noise on the
logarithms of times is assumed throughout; what else is assumed stands at each section.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from hpcml.analysis.frame import Arm
from hpcml.analysis.nodes import Measured, ratio
from hpcml.analysis.plan import find_spreads
from hpcml.analysis.scaling.conclusions import Evidence, Thresholds, sentences

Array = npt.NDArray[np.float64]
NODE_SD, RUN_SD = 0.03, 0.005
DESIGNS: Mapping[str, tuple[str, str]] = {  # the node of each seed, of the arm and of the reference
    "seed i of both on node i": ("123456", "123456"),
    "both on 3 nodes, 2 seeds each": ("112233", "112233"),
    "both on one node": ("111111", "111111"),
    "A 111222, B 222333": ("111222", "222333"),
    "A 11122, B 13333": ("11122", "13333"),
    "one node each": ("11111", "22222"),
    "2 nodes each": ("111222", "333444"),
    "3 nodes each": ("112233", "445566"),
    "5 nodes each": ("12345", "67890"),
}


def node_coverage(design: str, interaction: float, *, trials: int, seed: int = 1) -> tuple[float, float, float]:
    """Return the coverage of 95 % intervals of a speed-up, their median half width, and the share without one.

    *interaction* is the sd of what a node does to one arm alone.
    """
    noise = np.random.default_rng(seed)
    places = DESIGNS[design]
    names = sorted(set("".join(places)))
    hits, halves = 0, []
    for _ in range(trials):
        node = dict(zip(names, noise.normal(0, NODE_SD, len(names)), strict=True))
        arms = []
        for where in places:
            own = dict(zip(names, noise.normal(0, interaction, len(names)), strict=True))
            logs = [node[place] + own[place] + noise.normal(0, RUN_SD) for place in where]
            arms.append(
                [Measured(seed=i, node=p, value=math.exp(x)) for i, (p, x) in enumerate(zip(where, logs, strict=True))]
            )
        found = ratio(arms[1], arms[0])
        if found is not None and found.ci95 is not None:
            hits += found.ci95.low <= 1 <= found.ci95.high
            halves.append(math.log(found.ci95.high / found.ci95.low) / 2)
    known = len(halves)
    return (hits / known if known else math.nan, float(np.median(halves)) if known else math.nan, 1 - known / trials)


def help_claims(
    times: Mapping[int, float], noise_of: Mapping[int, float], *, seeds: int, trials: int, seed: int = 3
) -> float:
    """Return how often "more GPUs help up to ..." is said, where *times* are true and *noise_of* is the sd of logs."""
    noise = np.random.default_rng(seed)
    said = 0
    for _ in range(trials):
        costs = {
            n: [Measured(seed=s, node=None, value=t * math.exp(noise.normal(0, noise_of[n]))) for s in range(seeds)]
            for n, t in times.items()
        }
        cell = Evidence(kind="strong", over="GPUs", reference=1, points=(), costs_s=costs, fit=None)
        told = sentences(cell, Thresholds(least_gain=0.05, least_efficiency=0.5))
        said += any(line.startswith("more GPUs help up to") for line in told)
    return said / trials


def bound_holds(arms: int, n: int, rho: float, *, trials: int, seed: int = 5) -> tuple[float, float]:
    """Return how often the upper 80 % bounds of `hpcml plan` hold: of differences, and of an arm.

    *arms* besides the reference, *n* seeds each, values of one seed correlated by *rho* between arms.
    """
    noise = np.random.default_rng(seed)
    names = ["reference", *(f"arm{at}" for at in range(arms))]
    hits = {True: 0, False: 0}
    for _ in range(trials):
        values = noise.normal(size=(arms + 1, n)) * math.sqrt(1 - rho) + noise.normal(size=n) * math.sqrt(rho)
        found = find_spreads({name: _arm(name, row) for name, row in zip(names, values, strict=True)}, "reference")
        hits[True] += found[True].high >= math.sqrt(2 * (1 - rho))
        hits[False] += found[False].high >= 1
    return hits[True] / trials, hits[False] / trials


def _arm(level: str, values: Array) -> Arm:
    return Arm(
        level=level,
        ok=(),
        nan=(),
        without_metric=(),
        incomplete=(),
        failed=(),
        unfinished=(),
        values=dict(enumerate(values.tolist())),
    )


def main() -> None:
    """Print every table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=10000)
    trials = parser.parse_args().trials
    print(
        "| design | coverage, node x arm 0 | .5 % | 1 % | median half width | no interval |\n|---|---|---|---|---|---|"
    )
    for name in DESIGNS:
        cells = [node_coverage(name, sd, trials=trials) for sd in (0.0, 0.005, 0.01)]
        shown = " | ".join(f"{100 * cell[0]:.1f}" for cell in cells)
        print(f"| {name} | {shown} | {100 * cells[1][1]:.1f} % | {100 * cells[1][2]:.0f} % |")
    print("\n'more GPUs help up to 8' though 8 is slower than 1 (times 1, 2, 1.5, 1.2; noise of the first two 20 %):")
    for seeds in (3, 5):
        noise_of = {1: 0.2, 2: 0.2, 4: 0.01, 8: 0.01}
        rate = help_claims({1: 1.0, 2: 2.0, 4: 1.5, 8: 1.2}, noise_of, seeds=seeds, trials=trials)
        print(f"  {seeds} seeds: {100 * rate:.1f} %")
    print("\n| arms | n | rho | upper bound of differences holds, % | of an arm, % |\n|---|---|---|---|---|")
    for arms, n, rho in ((1, 3, 0.0), (4, 3, 0.0), (4, 3, 0.9), (4, 5, 0.5), (8, 3, 0.5)):
        pairs, single = bound_holds(arms, n, rho, trials=trials)
        print(f"| {arms} | {n} | {rho:g} | {100 * pairs:.1f} | {100 * single:.1f} |")


if __name__ == "__main__":
    main()
