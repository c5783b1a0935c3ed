"""What is particular to a program that is the user's own: which settings say nothing of it, and what it changed.

A run records every setting. Those that a recipe reads (steps, batch, layout, data) say nothing of another program where
nobody has chosen them; headings and `hpcml show` leave them out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hpcml.codec import encode, flatten
from hpcml.model.training import Training

CHANGED_OUTSIDE = "changed_outside"  # a fact: what runs share, outside of their copies, and changed meanwhile
_UNCHOSEN: Mapping[str, tuple[object, ...]] = {  # what they are where nobody says anything, by conf/run.yaml
    "model.name": ("custom",),
    "data.name": ("custom", "digits"),
    "data.holdout": (0.2,),
    "data.needs_path": (False,),
    "data.ships_with": ("scikit-learn", None),
    "layout.name": ("nchw",),
    "workload.metrics_from": (["auto"],),
    **{key: (value,) for key, value in flatten(encode(Training()), "training").items()},
}


def is_own_program(params: Mapping[str, Any]) -> bool:
    """Tell whether a run with these settings is the user's own program and not a recipe."""
    return params.get("workload.command") is not None or params.get("model.recipe") is None


def says_nothing(params: Mapping[str, Any], key: str) -> bool:
    """Tell whether *key* is a setting for recipes that nobody chose, of a program of the user's own.

    >>> says_nothing({"workload.command": "./train", "training.batch_size": 64}, "training.batch_size")
    True
    """
    return key in _UNCHOSEN and params.get("workload.command") is not None and params.get(key) in _UNCHOSEN[key]
