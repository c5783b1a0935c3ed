"""Which known word is meant by one that does not exist: a command, an option, a setting, a choice, a metric, a run."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

_LIKE = 0.7  # difflib's own measure: two words with this share of letters in the same order look alike
_MOST = 2  # candidates in an error's one line
_SELDOM = ("cluster", "container", "profile")  # sections that few people write in; most words are meant for others
OPTIONS_FOR_COMMANDS = (  # what people look for a command for
    *("runs --best", "show --files", "show --curve", "recipes --gpus", "new project", "tag --note", "plan --time"),
    *("sync --add", "sync --check", "rm --older-than"),
)
_SYNONYMS: Mapping[str, str] = {  # what schedulers, Lightning, other trackers and shells call it
    "t": "walltime",
    "time": "walltime",
    "p": "partition",
    "c": "cpus_per_task",
    "cores": "cpus_per_task",
    "gres": "gpus_per_node",
    "ntasks": "processes_per_node",
    "ntasks_per_node": "processes_per_node",
    "lr": "learning_rate",
    "bs": "batch_size",
    "epochs": "steps",
    "experiment": "study",
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "32": "fp32",
    "16": "amp_fp16",
    "16-mixed": "amp_fp16",
    "bf16-mixed": "amp_bf16",
    "submit": "run",
    "ls": "runs",
    "ps": "status",
    "kill": "cancel",
    "stop": "cancel",
    "delete": "rm",
    "resume": "retry",
    "tail": "lines",
    "init": "new project",
    "prune": "rm --older-than",
}


def nearest(word: str, known: Collection[str]) -> list[str]:
    """Return at most two of *known* that *word* may stand for, the likeliest first; none where nothing is like it.

    Known words may be dotted keys, of which the last part counts. It is one that is called the same, or what other
    programs call so; else some begin so; else are spelled alike; else *word* begins as they do, or they contain it. Of
    several those count that are in the section of *word*.

    >>> nearest("account", ["layout", "resources.account"]), nearest("Precison", ["precision", "seed"])
    (['resources.account'], ['precision'])
    >>> nearest("acc", ["val_accuracy", "loss"]), nearest("", ["loss"])
    (['val_accuracy'], [])
    """
    asked = word.lower()
    by_lower = {key.lower(): key for key in sorted(known, reverse=True)}  # of two, the one in capitals
    if not asked or (asked in by_lower and word not in known):
        return [by_lower[asked]] if asked else []
    section, last = asked.rpartition(".")[0], _last(asked)
    keys = sorted(by_lower.keys() - {asked}, key=lambda key: (_distance(key, section), key))
    same = [key for key in keys if _SYNONYMS.get(last) in (key, _last(key)) or _last(key) == last]
    if same:
        return [by_lower[same[0]]]
    names = difflib.get_close_matches(last, dict.fromkeys(map(_last, keys)), n=_MOST, cutoff=_LIKE)
    alike = [key for name in names for key in keys if _last(key) == name]
    longer = [key for key in keys if _begins(_last(key), last)]
    shorter = [key for key in keys if _begins(last, _last(key))]
    inside = [key for key in keys if len(asked) > _MOST and asked in key]
    near = next(filter(None, (longer, alike, shorter, inside)), [])
    least = min((_distance(key, section) for key in near), default=None)
    return [by_lower[key] for key in near if _distance(key, section) == least][:_MOST]


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``did you mean X or Y?``; "" where none of *known* is like *word*."""
    near = nearest(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _begins(word: str, beginning: str) -> bool:
    return len(beginning) > _MOST and word.startswith(beginning)


def _last(key: str) -> str:
    """Return the last part of a dotted key, or of a command with its option."""
    return re.split(r"[. ]-*", key)[-1]


def _distance(key: str, section: str) -> tuple[bool, bool, bool]:
    """Return how far *key* is from what somebody may mean who writes in *section*: smaller is nearer."""
    return bool(section) and key.rpartition(".")[0] != section, key.count(".") > 1, key.partition(".")[0] in _SELDOM
