"""What somebody meant who wrote a word that does not exist: a command, a key, an option, a run's experiment."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

_LIKE = 0.65  # difflib's own measure: two words with this share of letters in the same order look alike
_MOST = 2
_SELDOM = ("cluster", "container", "profile")  # sections that few people write in; most words are meant for others

# What other programs call our settings, by the last part of a key.
KEYS: Mapping[str, str] = {
    **dict.fromkeys(("lr", "learningrate", "learning-rate", "rate"), "learning_rate"),
    **dict.fromkeys(("gpus", "gpu", "ngpus", "num_gpus", "devices_per_node"), "gpus_per_node"),
    **dict.fromkeys(("cpus", "cores", "threads", "num_threads", "num_workers", "cpu"), "cpus_per_task"),
    **dict.fromkeys(("bs", "batch", "batchsize", "batch-size"), "batch_size"),
    **dict.fromkeys(("epochs", "iterations", "iters", "max_steps", "num_steps"), "steps"),
    **dict.fromkeys(("time", "timelimit", "time_limit", "wall_time", "timeout", "hours"), "walltime"),
    **dict.fromkeys(("memory", "ram", "mem_per_node"), "mem"),
    "q": "queue",
    **dict.fromkeys(("project", "allocation"), "account"),
    **dict.fromkeys(("ntasks", "processes", "nproc_per_node", "ntasks_per_node", "ranks"), "processes_per_node"),
    **dict.fromkeys(("num_nodes", "n_nodes", "nnodes"), "nodes"),
    **dict.fromkeys(("image", "singularity", "apptainer", "docker"), "container"),
    **dict.fromkeys(("dtype", "amp"), "precision"),
    **dict.fromkeys(("dataset",), "data"),
    **dict.fromkeys(("network", "net", "arch"), "model"),
    **dict.fromkeys(("cmd", "program", "script"), "command"),
    **dict.fromkeys(("random_seed", "seeds"), "seed"),
    "tag": "tags",
}
# What other programs call our choices, as in precision=float16.
OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("float64", "double", "64", "64-true"), "fp64"),
    **dict.fromkeys(("float32", "single", "full", "float", "32", "32-true"), "fp32"),
    **dict.fromkeys(("float16", "half", "f16", "16-true"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-true"), "bf16"),
    **dict.fromkeys(("mixed", "mixed_precision"), "amp"),
    **dict.fromkeys(("16", "16-mixed"), "amp_fp16"),  # Lightning's words
    "bf16-mixed": "amp_bf16",
    **dict.fromkeys(("fp8", "float8"), "fp8_hybrid"),
    "tensorfloat32": "tf32",
}
COMMANDS: Mapping[str, str] = {
    **dict.fromkeys(("submit", "start", "launch", "sweep", "train", "exec"), "run"),
    **dict.fromkeys(("ls", "list", "history", "jobs"), "runs"),
    **dict.fromkeys(("ps", "queue", "stat"), "status"),
    **dict.fromkeys(("stop", "kill", "abort"), "cancel"),
    **dict.fromkeys(("delete", "remove", "clean", "gc", "prune"), "rm"),
    **dict.fromkeys(("tail", "log", "output", "cat"), "logs"),
    **dict.fromkeys(("reread", "parse", "extract", "scan"), "read"),
    **dict.fromkeys(("info", "describe", "inspect", "config"), "show"),
    **dict.fromkeys(("create", "scaffold"), "new"),
    **dict.fromkeys(("resume", "restart", "requeue", "rerun"), "retry"),
    **dict.fromkeys(("plot", "curve", "metrics"), "curves"),
    **dict.fromkeys(("monitor", "htop", "nvidia-smi"), "top"),
    **dict.fromkeys(("check", "test", "verify"), "doctor"),
    **dict.fromkeys(("sql", "select"), "query"),
    **dict.fromkeys(("image", "containers", "container"), "images"),
    **dict.fromkeys(("models", "recipe", "datasets"), "recipes"),
    **dict.fromkeys(("web", "browse", "dashboard"), "watch"),
    **dict.fromkeys(("gpu", "devices"), "gpus"),
    **dict.fromkeys(("eta", "cost"), "estimate"),
}
# Of the commands below another one, as in `hpcml images check`.
BELOW: Mapping[str, str] = {
    **dict.fromkeys(("ls", "all"), "list"),
    **dict.fromkeys(("info", "describe", "inspect"), "show"),
    **dict.fromkeys(("delete", "remove"), "rm"),
    **dict.fromkeys(("clean", "gc"), "prune"),
    **dict.fromkeys(("create", "make", "init", "discover"), "new"),
    **dict.fromkeys(("save", "move"), "export"),
    "load": "import",
    "check": "verify",
    "verify": "check",
    "study": "experiment",
    "profile": "cluster",
}
# Of the options of commands.
FLAGS: Mapping[str, str] = {
    "--tail": "--lines",
    **dict.fromkeys(("--baseline", "--against", "--base"), "--reference"),
    **dict.fromkeys(("--output", "--out", "--file"), "-o"),
    **dict.fromkeys(("--group", "--group-by"), "--by"),
    "--format": "--to",
    "--filter": "--where",
    **dict.fromkeys(("--last", "--head", "--max"), "--limit"),
    "--force": "--yes",
    "--watch": "--follow",
}


def nearest(word: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> list[str]:
    """Return at most two of *known* that *word* may stand for, the likeliest first; none where nothing is like it.

    Known words may be dotted keys. First come those whose last part is that of *word*, or what other programs call so
    (*synonyms*), the one of the same section before others, and one that is two sections deep last; then those that
    begin so, and those that look alike, whole or in their last parts.

    >>> nearest("account", ["layout", "resources.account"])
    ['resources.account']
    """
    section, _, last = word.lower().rpartition(".")
    ends = (last, (synonyms or {}).get(last))
    same = [(at, key) for at, end in enumerate(ends) for key in known if _last(key) == end and key != word]
    if same:
        return [min(same, key=lambda one: (_distance(one[1], section), one))[1]]
    lasts = {_last(key) for key in known}
    by_last = difflib.get_close_matches(last, lasts, n=_MOST, cutoff=_LIKE)
    inside = [key for end in by_last for key in known if _last(key) == end and section == _section(key)]
    whole = difflib.get_close_matches(word.lower(), known, n=_MOST, cutoff=_LIKE)
    elsewhere = [key for end in by_last for key in known if _last(key) == end]
    begun = [key for key in sorted(known) if len(last) >= len("abc") and _last(key).startswith(last)]
    in_section = inside or [key for key in begun if section and _section(key) == section]
    found = in_section or [key for key in whole if "." in key or not section] or begun or elsewhere
    return list(dict.fromkeys([key for key in found if key in begun] or found))[:_MOST]


def did_you_mean(word: str, known: Collection[str], synonyms: Mapping[str, str] | None = None) -> str | None:
    """Return the question, ``did you mean X?``; None where nothing is like *word*."""
    near = nearest(word, known, synonyms)
    return f"did you mean {' or '.join(near)}?" if near else None


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _section(key: str) -> str:
    return key.rpartition(".")[0]


def _distance(key: str, section: str) -> tuple[bool, bool, bool]:
    """Return how far *key* is from what somebody may mean who writes in *section*: smaller is nearer."""
    return _section(key) != section, key.count(".") > 1, key.partition(".")[0] in _SELDOM
