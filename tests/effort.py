"""How hard the tests try: `make test` as far as one waits for it, `make test-full` with all that there is time for.

Both run the same tests. Those that draw examples or kill processes at random do it more often in full, and those that
start a hpcml start a new Python for it. `HPCML_TESTS=full` in the environment is what asks for it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

VARIABLE = "HPCML_TESTS"


def is_full() -> bool:
    """Tell whether this is the full suite."""
    return os.environ.get(VARIABLE) == "full"


def times(usual: int, full: int) -> int:
    """Return how often to try: *usual* or, in the full suite, *full*."""
    return full if is_full() else usual


def keep(path: Path, question: str, answer: Any) -> None:  # noqa: ANN401 - JSON
    """Keep what an oracle answered in the full suite, so that the usual one need not ask it."""
    known: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if is_full() and known.get(question) != answer:
        fresh = path.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps({**known, question: answer}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        fresh.replace(path)  # others read it at the same time
