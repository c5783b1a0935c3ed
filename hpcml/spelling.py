"""Which known word is meant by one that does not exist: a command, an option, a setting, a choice, a metric, a run."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

_LIKE = 0.7  # difflib's own measure: two words with this share of letters in the same order look alike
_MOST = 2  # candidates in an error's one line
_SELDOM = ("cluster", "container", "profile")  # sections that few people write in; most words are meant for others
_WORDS: Mapping[str, str] = {  # ours, and what other programs call it
    "learning_rate": "lr learningrate",
    "batch_size": "bs batch",
    "steps": "epochs iterations iters max_steps",
    "gpus_per_node": "gpus gpu num_gpus gres",
    "cpus_per_task": "cpus cpu cores threads num_workers c",
    "nodes": "num_nodes nnodes N",
    "processes_per_node": "ntasks ranks nproc_per_node ntasks_per_node",
    "walltime": "time timelimit time_limit timeout t",
    "mem": "memory ram",
    "account": "project allocation A",
    "partition": "p",
    "qos": "q",
    "container": "image singularity apptainer docker",
    "data": "dataset",
    "model": "network arch",
    "command": "cmd program script",
    "tags": "tag",
    "fp64": "float64 double 64",
    "fp32": "float32 single full 32",
    "fp16": "float16 half",
    "bf16": "bfloat16",
    "amp": "mixed",
    "amp_fp16": "16 16-mixed",
    "amp_bf16": "bf16-mixed",
    "run": "submit start launch sweep train exec",
    "runs": "ls list history jobs",
    "list": "ls",
    "status": "ps queue",
    "cancel": "stop kill abort",
    "rm": "delete remove clean",
    "logs": "tail log output",
    "show": "info describe inspect last",
    "new": "create discover",
    "retry": "resume restart requeue rerun",
    "doctor": "check",
    "verify": "check",
    "experiment": "study",
    "reference": "baseline base",
    "lines": "tail",
    "o": "output out",
    "limit": "last head",
    "where": "filter",
    "study": "experiment",
    "runs --best": "best",
    "show --files": "files",
    "show --curve": "curves",
    "recipes --gpus": "gpus",
    "new project": "init",
    "tag --note": "note",
    "sync --add": "ingest",
    "sync --check": "store",
    "plan --time": "estimate",
    "rm --older-than": "prune",
}
OPTIONS_FOR_COMMANDS = [ours for ours in _WORDS if " " in ours]  # what people look for a command for
SYNONYMS = [(other, ours) for ours, others in _WORDS.items() for other in others.split()]


def nearest(word: str, known: Collection[str]) -> list[str]:
    """Return at most two of *known* that *word* may stand for, the likeliest first; none where nothing is like it.

    Known words may be dotted keys. It is one that differs from *word* in its case alone, or whose last part is that of
    *word*, or what other programs call so. Else they are spelled alike, whole or in their last parts, or begin
    so; where there are none of these, they contain *word*. Of several the one of the same section comes first.

    >>> nearest("account", ["layout", "resources.account"]), nearest("Precison", ["precision", "seed"])
    (['resources.account'], ['precision'])
    >>> nearest("acc", ["val_accuracy", "loss"]), nearest("", ["loss"])
    (['val_accuracy'], [])
    """
    asked = word.lower()
    by_lower = {each.lower(): each for each in sorted(known, reverse=True)}  # of two, the one in capitals
    if not asked or (asked in by_lower and word not in known):
        return [by_lower[asked]] if asked else []
    section, _, last = asked.rpartition(".")
    keys = sorted(by_lower, key=lambda key: (_distance(key, section), key))
    by_last: dict[str, list[str]] = {}
    for key in keys:
        by_last.setdefault(_last(key), []).append(key)
    ends = [last, *(ours for other, ours in SYNONYMS if other == last)]
    found = sorted((key for end in ends for key in by_last.get(end, []) if key != asked), key=keys.index)[:1]
    if not found:
        alike = [key for end in difflib.get_close_matches(last, by_last, n=_MOST, cutoff=_LIKE) for key in by_last[end]]
        begun = [key for key in keys if len(last) > _MOST and _last(key).startswith(last)]
        inside = [key for key in (*alike, *begun) if section and _section(key) == section]
        able = alike if section else by_lower  # the same section makes no two keys alike
        whole = difflib.get_close_matches(asked, able, n=_MOST, cutoff=_LIKE)
        found = inside or [key for key in whole if "." in key or not section] or begun or alike
        found = [key for key in found if key in begun] or found
    found = found or [key for key in sorted(by_lower) if len(asked) > _MOST and asked in key]
    return [by_lower[key] for key in dict.fromkeys(found)][:_MOST]


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return ``did you mean X or Y?``; "" where none of *known* is like *word*."""
    near = nearest(word, known)
    return f"did you mean {' or '.join(near)}?" if near else ""


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _distance(key: str, section: str) -> tuple[bool, bool, bool]:
    """Return how far *key* is from what somebody may mean who writes in *section*: smaller is nearer."""
    return _section(key) != section, key.count(".") > 1, key.partition(".")[0] in _SELDOM
