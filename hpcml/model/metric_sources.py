"""From where the metrics of a program are taken that does not report them: what it prints, and files that it writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from hpcml.errors import ConfigError, require

AUTO = "auto"
# Begins a fact of a run, before the name of a metric that was read from what the run had printed once it had ended, so
# that nobody knows when each value was printed.
READ_AFTERWARDS = "read_afterwards."
PRINTED_LOSS = "printed_loss"  # a fact of runs whose last loss, as they printed it, is no number; "" takes it back
NONFINITE = " nan or infinite"  # in it, behind the name of that loss


# How a library's number shows itself: tensor(0.69, grad_fn=...), np.float64(0.14), Array([0.5], dtype=float32)
IN_CALL = r"(?:tensor|[Aa]rray|(?:np|numpy|jnp|torch|tf)\.\w{1,20})\("
_STEP = r"""(?:\b(?i:(?:global_)?step|iter|iteration|epoch)\b["']?\W{1,9}(?P<step>\d[\d,]*+)(?!\.\d).{0,300}?)?"""
# Another word before a name is a part of it, as in val loss; these are none
_ALONE = r"(?<![\w./@-])(?:(?<![^\W\d_] )|(?i:(?<=\bfinal )|(?<=\btrain )|(?<=\btraining )))"
_NUMBER = (
    r"[-+]?(?:(?i:nan|inf(?:inity)?)|(?:\d++(?:,\d++)*\.?\d*+|\.\d++)(?:[eEdD][-+]?\d++)?(?:\s?/\s?\d++)?)"
    r"(?=m?s\b|(?!\w|[.,:]\d|[/-]\d))"
)


class MetricFiles(Enum):
    """The kinds of files in which programs leave metrics; where two have a metric, the first of these counts."""

    jsonl = "jsonl"  # metrics.jsonl, log.jsonl, train_log.jsonl
    csv = "csv"  # metrics.csv, as Lightning's CSVLogger writes it, and other tables as text
    trainer = "trainer"  # trainer_state.json of Hugging Face's Trainer; of another name, numbers by their names
    tensorboard = "tensorboard"
    wandb = "wandb"  # offline runs of Weights & Biases

    @classmethod
    def by_ending(cls, name: str) -> MetricFiles | None:
        """Return how a file that was named by the user is read, by how its name ends; None for an unknown ending."""
        if "tfevents" in name:
            return cls.tensorboard
        return _KIND_OF_ENDING.get(PurePosixPath(name).suffix)


_KIND_OF_ENDING: Mapping[str, MetricFiles] = {
    ".jsonl": MetricFiles.jsonl,
    ".ndjson": MetricFiles.jsonl,
    ".csv": MetricFiles.csv,
    ".tsv": MetricFiles.csv,
    ".log": MetricFiles.csv,  # Keras' CSVLogger("training.log")
    **dict.fromkeys((".dat", ".txt"), MetricFiles.csv),  # of simulations, gnuplot
    ".json": MetricFiles.trainer,
    ".wandb": MetricFiles.wandb,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRule:
    r"""A rule that reads metrics from lines that a program prints, for programs that cannot be changed.

    Without a `pattern`, the metric is the number behind the word `name`, as `number_behind` finds it.

    `pattern` is a regular expression with the group ``value``, and optionally ``step`` and ``name``; `name` is the
    metric's name where the pattern has no such group. Without ``value``, each group but ``step`` is a metric of its own
    name. Raises `ConfigError` where the pattern is invalid or names no metric. Of these two, the first reads loss=0.5
    at step 10 from "step 10 loss 0.5", the second both losses from "5: train 0.5 val 0.6":

        MetricRule(name="loss", pattern=r"step (?P<step>\d+) loss (?P<value>\S+)")
        MetricRule(pattern=r"(?P<step>\d+): train (?P<train_loss>\S+) val (?P<val_loss>\S+)")
    """

    pattern: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        if self.pattern is None:
            require(
                re.search(r"\w", self.name or "") is not None,
                "workload.metrics: a rule has a pattern, or the name that a program prints before the number",
            )
            return
        try:
            groups = re.compile(self.pattern).groupindex
        except re.error as error:
            raise ConfigError(f"workload.metrics pattern {self.pattern!r} is no regular expression: {error}") from error
        own = set(groups) - {"step", "name", "value"}
        require(
            "value" in groups or bool(own),
            f"workload.metrics pattern {self.pattern!r} lacks a group: (?P<value>...), or one by each metric's name",
        )
        require(
            self.name is not None or "name" in groups or "value" not in groups,
            f"workload.metrics pattern {self.pattern!r} gives no name: set name or use (?P<name>...)",
        )

    @property
    def regex(self) -> str:
        """The regular expression, of a name alone too."""
        return number_behind(self.name or "") if self.pattern is None else self.pattern

    def __str__(self) -> str:
        return f"--metric {self.name}" if self.pattern is None else f"the rule {self.pattern}"


def number_behind(name: str) -> str:
    """Return the regular expression for numbers behind the word *name* in the usual spellings, and for their steps.

    A ``_`` stands for a blank, too, and other words before the name are a part of it.

    >>> lines = ["step 10 loss 0.5", "loss=.25, val_loss=9", "val loss 9", "{'loss': 1e-3}", "lossy: 9", "loss: 2.5.1"]
    >>> [match["value"] for line in lines if (match := re.search(number_behind("loss"), line))]
    ['0.5', '.25', '1e-3']
    >>> re.search(number_behind("val_loss"), "Epoch [3/5] val loss: tensor(0.5)").groupdict()
    {'step': '3', 'value': '0.5'}
    """
    words = "[_ ]".join(map(re.escape, re.split("[_ ]", name)))
    between = r"""["']?(?:\s{0,30}[:=|│┃]\s{0,30}|\s{1,9})"""  # of tables, too
    return rf"""{_STEP}{_ALONE}{words}{between}(?:{IN_CALL})?["'(\[]{{0,2}}\s{{0,9}}(?P<value>{_NUMBER})"""


def is_path(word: str) -> bool:
    """Tell whether a word of workload.metrics_from names files, and no kind of them."""
    return word != AUTO and word not in MetricFiles.__members__


def check_metric_files(word: str) -> None:
    """Refuse a word of workload.metrics_from that names neither a kind of files nor files that can be read."""
    if not is_path(word):
        return
    path = PurePosixPath(word)
    require(
        not path.is_absolute() and ".." not in path.parts,
        f"workload.metrics_from={word!r}: name files inside the working directory, such as logs/*.jsonl",
    )
    kinds = ", ".join((AUTO, *MetricFiles.__members__))
    require(
        MetricFiles.by_ending(word) is not None,
        f"workload.metrics_from={word!r} is none of {kinds}, and as a file it must end in {', '.join(_KIND_OF_ENDING)}",
    )
