"""What composing a sweep costs: CPU time of `compose_from_cli`, against Hydra composing every point by itself.

The sweep is precision=fp32,tf32,amp seed=range(n): 1002 and 10 002 points, composed, resolved and checked; nothing is
submitted. Hydra's own way is had by asking for the sweep in a configuration file (hydra.mode: MULTIRUN) instead of by
-m: Hydra's BasicSweeper then composes each point twice (it validates, then launches) and hands it to the same checks.
It is measured on 3 and on SLOW_POINTS points; what each further point costs is extrapolated, and labelled so.

Each time is the smallest of REPEAT, taken in turns after a round that is thrown away: other work on the machine can
only add to it. CPU time is user and system time of this process, imports not included.

The promise: 1000 points need at most LIMIT_S seconds.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hpcml.config.compose import compose_from_cli

REPEAT = 3
SLOW_POINTS = 30
LIMIT_S = 3.0
A_SWEEP_BY_FILE = "defaults: [run, _self_]\nhydra: {mode: MULTIRUN}\n"


def sweep(points: int) -> list[str]:
    return ["precision=fp32,tf32,amp", f"seed=range({points // 3})"]


def cpu_s(words: list[str], points: int, project: Path) -> float:
    """Return the CPU seconds that composing *words* took; a wrong count ends the benchmark."""
    started = time.process_time()
    composed = compose_from_cli(words, project=project)
    took_s = time.process_time() - started
    if len(composed) != points:
        sys.exit(f"{' '.join(words)} gave {len(composed)} points instead of {points}")
    return took_s


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        (project / "several.yaml").write_text(A_SWEEP_BY_FILE)
        ours = {points: ["-m", *sweep(points)] for points in (3, 1002, 10_002)}
        hydras = {points: ["-cd", folder, "-cn", "several", *sweep(points)] for points in (3, SLOW_POINTS)}
        fast = dict.fromkeys(ours, float("inf"))
        slow = dict.fromkeys(hydras, float("inf"))
        cpu_s(ours[3], 3, project)
        for _ in range(REPEAT):
            fast = {points: min(best, cpu_s(ours[points], points, project)) for points, best in fast.items()}
            slow = {points: min(best, cpu_s(hydras[points], points, project)) for points, best in slow.items()}
    each_s = (slow[SLOW_POINTS] - slow[3]) / (SLOW_POINTS - 3)
    print(f"| points | hpcml, CPU s (best of {REPEAT}) | ms each after start-up | Hydra's own way, CPU s | ratio |")
    print("|---:|---:|---:|---:|---:|")
    for points in (1002, 10_002):
        each_ms = (fast[points] - fast[3]) / (points - 3) * 1000
        whole_s = slow[3] + each_s * (points - 3)
        ratio = whole_s / fast[points]
        print(f"| {points} | {fast[points]:.2f} | {each_ms:.2f} | {whole_s:.0f} (extrapolated) | {ratio:.0f} |")
    print(
        f"\nHydra's own way, measured: {slow[3]:.2f} s for 3 points, {slow[SLOW_POINTS]:.2f} s for {SLOW_POINTS}, "
        f"so {each_s * 1000:.0f} ms for each. 1002 points: the limit is {LIMIT_S:g} s."
    )
    return 0 if fast[1002] <= LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
