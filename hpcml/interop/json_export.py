"""Whole runs as one JSON document, written run by run.

A run has the fields of `RunRecord`, `t_zero` (the unix time, in seconds, from which its other times count), `curves`
with the lists `step`, `t_s` and `value` of each metric, and `events`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import IO

from hpcml.codec import Json, encode
from hpcml.interop.exported import Export, WholeRun, json_ready

FORMAT = 1
_BEGINNING = '{"hpcml_export": '


def write_json(export: Export, file: IO[str]) -> None:
    """Write ``{"hpcml_export": 1, "runs": [...]}``, a line for each run; nan and infinities are texts.

    The number is that of the format. One run at a time is in memory.
    """
    file.write(f'{_BEGINNING}{FORMAT}, "runs": [')
    for line in _separated(export):
        file.write(line)
    file.write("\n]}\n")


def is_json_export(head: bytes) -> bool:
    """Tell whether a file that begins with *head* is such a document."""
    return head.startswith(_BEGINNING.encode())


def _separated(export: Export) -> Iterable[str]:
    separator = "\n"
    for run in export.runs:
        yield separator + json.dumps(json_ready(_run(run)), allow_nan=False)
        separator = ",\n"


def _run(run: WholeRun) -> Json:
    record = run.record
    plain = encode(record)
    return {
        **plain,
        **{key: {name: encode(value) for name, value in getattr(record, key).items()} for key in ("params", "facts")},
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
