"""The runs of an export, read one after the other, so that ten thousand need no more memory than one.

All formats of `hpcml export` share it. Also here: values as text formats need them (`clean`, `json_ready`), and the
error where a format's library is not installed (`needing`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hpcml.codec import Json
from hpcml.errors import ConfigError
from hpcml.model.records import Point, RunRecord, StoredEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeRun:
    """One run with its curves and events.

    `curves` has the points of each metric by its name, ordered by step; `events` is ordered by time.
    """

    record: RunRecord
    t_zero: float  # unix seconds: where the times of its points and events count from
    curves: Mapping[str, Sequence[Point]]
    events: Sequence[StoredEvent]

    def unix_ms(self, t_s: float) -> int:
        """Return the moment *t_s* (seconds since `t_zero`) of this run in unix milliseconds, as MLflow counts."""
        return round((self.t_zero + t_s) * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """The runs of one export. `runs` can be iterated over once, in the order of `records`.

    `records` are in memory, for formats that need all columns before the first row; `runs` reads the curves and events
    of one run at a time.
    """

    records: Sequence[RunRecord]
    t_zero: Mapping[str, float]  # by uid, unix seconds
    runs: Iterable[WholeRun]


def clean(text: str) -> str:
    """Return *text* with lone surrogates, which JSON can name but UTF-8 cannot encode, replaced by "?".

    A surrogate is half of a UTF-16 pair (U+D800 to U+DFFF); the JSON that a user's program writes may have one alone.
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def json_ready(value: Json) -> Json:
    """Return *value* with nan and infinities, for which JSON has no number, as the texts "nan", "inf", "-inf".

    Tuples become lists, and keys of mappings text; other values stay as they are.

    >>> json_ready({"loss": float("nan")})
    {'loss': 'nan'}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_ready(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(item) for item in value]
    return value


@contextmanager
def needing(package: str, *, extra: str) -> Iterator[None]:
    """Turn a failed import of *package* in the block into a `ConfigError` that names the *extra* to install.

    The error names the module that is missing, which may be one that *package* itself needs.
    """
    try:
        yield
    except ImportError as error:
        missing = error.name or package
        raise ConfigError(f"{missing} is not installed: pip install 'hpcml[{extra}]'") from error
