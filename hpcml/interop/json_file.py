"""Runs whole as one JSON document, written run by run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO

from hpcml.codec import Json, encode
from hpcml.interop.exported import Export, WholeRun, json_ready

FORMAT = 1
_BEGINNING = '{"hpcml_export": '


def write_json(export: Export, file: IO[str]) -> None:
    """Write ``{"hpcml_export": 1, "runs": [...]}``, a line for each run; nan and infinities are texts."""
    file.write(f'{_BEGINNING}{FORMAT}, "runs": [')
    for line in _separated(export.runs):
        file.write(line)
    file.write("\n]}\n")


def is_json_export(head: bytes) -> bool:
    """Whether a file that begins with *head* was written here."""
    return head.startswith(_BEGINNING.encode())


def _separated(runs: Iterable[WholeRun]) -> Iterable[str]:
    separator = "\n"
    for run in runs:
        yield separator + json.dumps(json_ready(_run(run)), allow_nan=False)
        separator = ",\n"


def _run(run: WholeRun) -> Json:
    record = run.record
    plain = encode(record)
    return {
        **plain,
        **{key: {name: encode(value) for name, value in getattr(record, key).items()} for key in ("params", "facts")},
        "metrics": {name: encode(summary) for name, summary in record.metrics.items()},
        "t_zero": run.t_zero,
        "curves": {
            name: {
                "step": [point.step for point in points],
                "t_s": [point.t_s for point in points],
                "value": [point.value for point in points],
            }
            for name, points in run.curves.items()
        },
        "events": [{**encode(event), "details": dict(event.details)} for event in run.events],
    }
