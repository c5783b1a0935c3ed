"""Which settings of a run make it another experiment, and which may change its results; known by their keys alone."""

from __future__ import annotations

import re
from functools import lru_cache

_WORDS_FOR_PEOPLE = frozenset({"name", "tags"})
# Who pays, when and how long: a run that is asked for again with another walltime is the same run. The partition and
# the constraint stay in: they may choose other hardware.
_PLACEMENT = frozenset(
    f"resources.{word}"
    for word in (
        *("account", "qos", "mem", "walltime", "reservation", "nodelist", "exclude", "exclusive", "dependency"),
        *("mail_user", "mail_type", "array_parallelism", "extra_directives"),
        *("pbs.mpiprocs", "pbs.ompthreads", "pbs.place", "pbs.filesystems"),
    )
) | {"workload.stop_grace", "training.checkpoint_every"}  # a run that goes on from a checkpoint gives the same numbers
# How a run is judged, observed, and whether it goes on after a precision mismatch, is not what it computes.
_JUDGEMENT = (
    *("objective.margins", "objective.target", "objective.scale"),
    *("precision.on_mismatch", "precision.observe", "workload.metrics_from"),
)
# Where a user's program writes to, and what it calls its run. No --ckpt_path, from which some go on.
_OF_OUTPUT = re.compile(
    r"(?!.*(?:in(?:it|put)|load|read|resto|resum|pretrain|from|data))(?:.*_)?(?:"
    r"(?:out|output|save|log|logging|results?)_?(?:dir|directory|folder|path|file|name|prefix)"
    r"|(?:work|run|exp|experiment|export|tensorboard|tb|ckpts?|checkpoints?|default_root)_?(?:dir|directory|folder)"
    r"|(?:run|exp|experiment)_?name)|out|output"
)
_HARDWARE_CHOICE = frozenset({"resources.partition", "resources.queue", "resources.constraint"})
# How an image comes about and is called changes nothing in it.
_NOT_IDENTIFYING = frozenset({"build", "runtime", "labels", "compression", "build_processors"})


@lru_cache(maxsize=10_000)  # of a sweep's runs the keys are the same
def identifies(key: str) -> bool:
    """Tell whether the setting *key* is part of the run's identity: runs that differ in it are different experiments.

    Not part of it are names and tags, who pays and where the job waits, packing, telemetry, and how results are judged.
    Of a cluster only its name counts: the other fields describe it and may be corrected later.

        >>> identifies("training.batch_size"), identifies("resources.walltime")
        (True, False)
    """
    if key.startswith("cluster."):
        return key == "cluster.name"
    if key.startswith("container."):
        return _identifies_container(key)
    if key.startswith(("schedule.", "telemetry.", "resources.pbs.options", *_JUDGEMENT)):
        return False
    return key not in _WORDS_FOR_PEOPLE and key not in _PLACEMENT


def changes_results(key: str) -> bool:
    """Tell whether the setting *key* may change what a run computes or how fast.

    These are the settings of `identifies` without the choice of partition, queue and constraint: which hardware these
    led to is recorded as facts of the run, and compared as such. Nor is it where a user's program writes to.

        >>> changes_results("workload.args.lr"), changes_results("workload.args.output-dir")
        (True, False)
    """
    flag = key.removeprefix("workload.args.")
    return identifies(key) and key not in _HARDWARE_CHOICE and (flag == key or not names_output(flag))


def names_output(flag: str) -> bool:
    """Tell whether *flag* of a user's program says where it writes to, or what its run is called."""
    return _OF_OUTPUT.fullmatch(re.sub("[-.]", "_", flag).lower()) is not None


def _identifies_container(key: str) -> bool:
    """Tell whether the setting *key* (``container.*``) is part of the run's identity.

    Who builds an image, its runtime and its labels do not change the software inside.
    """
    return key.removeprefix("container.").partition(".")[0] not in _NOT_IDENTIFYING
