"""Published performance figures of devices and workloads (published.toml), shown by `hpcml peak` next to measured ones.

None of them enters any statistics.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hpcml.analysis.attained import Published


def published_figures() -> tuple[Published, ...]:
    """Return all figures, in the order of the file."""
    return _figures()


def published_for(architectures: Collection[str]) -> tuple[Published, ...]:
    """Return the figures of GPUs of *architectures*; of a series over matrix sizes only the highest."""
    best: dict[tuple[str, str, str], Published] = {}
    for each in _figures():
        key = (each.workload, each.device, each.precision)
        if each.architecture in architectures and (key not in best or each.value > best[key].value):
            best[key] = each
    return tuple(best.values())


@cache
def _figures() -> tuple[Published, ...]:
    path = Path(__file__).parent / "published.toml"
    raw = tomllib.loads(path.read_text(encoding="utf-8"))
    sources = raw["sources"]
    figures = [_figure(row, sources) for row in raw["figures"]]
    return (*figures, *(each for row in raw["matrices"] for each in _matrices(row, sources)))


def _figure(row: Mapping[str, Any], sources: Mapping[str, str]) -> Published:
    return Published(
        workload=row["workload"],
        device=row["device"],
        precision=row["precision"],
        value=float(row["value"]),
        unit=row["unit"],
        source=sources[row["source"]],
        note=row.get("note"),
        architecture=row.get("architecture"),
        devices=row.get("devices", 1),
    )


def _matrices(row: Mapping[str, Any], sources: Mapping[str, str]) -> list[Published]:
    return [
        Published(
            workload=row["workload"],
            device=row["device"],
            precision=row["precision"],
            value=gflops,
            unit="GFLOP/s",
            source=sources[row["source"]],
            note=row.get("note"),
            architecture=row.get("architecture"),
            size=size,
            seconds=seconds,
            operations=row["operations"],
        )
        for size, gflops, seconds in zip(row["sizes"], row["gflops"], row["seconds"], strict=True)
    ]
