"""Which way a metric is better, as far as its name tells."""

from __future__ import annotations

import re

from hpcml.model.choices import Goal

_LESS = re.compile(
    r"\w*loss|losses|err|errors?|perplexity|ppl|nll|b?ce|\w*entropy|r?ms?e|r?msle|mae|mape|wer|cer|fid|kid|bp[bc]|"
    r"time|latency|energy|power|runtime|duration|divergence|kl|regret|s|ms|us|ns|k?j|k?w"
)
_MORE = re.compile(
    r"\w*acc|accuracy|precision|recall|f1|auc|auroc|ap|m?ap\d*|m?iou|dice|bleu|rouge\d*|psnr|ssim|rewards?|score|r2|top\d*|"
    r"speedup|throughput|t?flops|likelihood"
)
_RATE = re.compile(r"(?:per_?|/)(?:s|sec|second|seconds|min|minute|h|hour)$", re.IGNORECASE)  # samples_per_s
_WORD = re.compile(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])[0-9]*|[0-9]+")


def goal_by_name(metric: str) -> Goal | None:
    """Return the direction that the words of the name *metric* tell, the last of them first; None where none does.

    >>> [goal and goal.name for goal in map(goal_by_name, ["valid_ppl", "topAcc", "time_s", "samples_per_s", "depth"])]
    ['min', 'max', 'min', 'max', None]
    """
    if _RATE.search(metric):
        return Goal.max
    for word in reversed(_WORD.findall(metric)):
        if _LESS.fullmatch(word.lower()):
            return Goal.min
        if _MORE.fullmatch(word.lower()):
            return Goal.max
    return None
