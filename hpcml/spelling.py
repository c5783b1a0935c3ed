"""Which known word is meant by one that does not exist: a name of a metric, a setting, a run, a state, a queue.

What people mean who write another program's words for ours is in `hpcml.config.guess`.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST = 3  # candidates in an error's one line


def alike(word: str, known: Collection[str]) -> list[str]:
    """Return at most three of *known* that *word* may stand for, the likeliest first; none where nothing is like it.

    It is one that differs from *word* in its case alone, if there is one. Else they are spelled alike, by `difflib`, or
    have *word* as one of their parts between dots, which come first; where there are none of either, they contain it.

    >>> alike("Precison", ["precision", "seed"]), alike("batch_size", ["training.batch_size", "seed"])
    (['precision'], ['training.batch_size'])
    >>> alike("acc", ["val_accuracy", "loss"]), alike("", ["loss"])
    (['val_accuracy'], [])
    """
    asked = word.lower()
    if not asked:
        return []
    by_lower = {each.lower(): each for each in sorted(known, reverse=True)}  # of two, the one in capitals
    if asked in by_lower and word not in known:
        return [by_lower[asked]]
    parts = [each for each in sorted(by_lower) if asked in each.split(".")]
    near = [*parts, *difflib.get_close_matches(asked, by_lower, n=_MOST)]
    found = near or [each for each in sorted(by_lower) if asked in each]
    return [by_lower[each] for each in dict.fromkeys(found)][:_MOST]


def maybe_meant(word: str, known: Collection[str]) -> str:
    """Return ``did you mean X or Y?``; "" where none of *known* is like *word*."""
    near = alike(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""
