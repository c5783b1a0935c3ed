"""What the name of a metric tells: which way it is better, and how much it says of a training."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hpcml.model.choices import Goal

_ERRORS = (
    r"\w*loss|losses|err|errors?|perplexity|ppl|nll|b?ce|\w*entropy|r?ms?e|r?msle|mae|mape|wer|cer|ter|fid|kid|bp[bc]|"
    r"ece|brier|divergence|kl|regret|resid(?:ual)?s?|sse|lpips|bpd|(?:min)?[af]de"
)
_LOSSES = re.compile(r"\w*loss\d*|losses|nll|perplexity|ppl|b?ce|x?ent|\w*crossentropy|r?mse|mae|bp[bc]")
_OF_OTHERS = frozenset({"packet", "packets", "path"})  # packet_loss
_OF_A_LOSS = frozenset(  # behind the word: loss_scale, loss_ratio, loss_ms
    {
        *("scale", "scaler", "scaling", "weight", "weights", "coef", "coefficient", "factor", "lambda", "norm"),
        *("ratio", "fraction", "percent", "percentage", "pct", "rate", "count", "threshold", "patience", "reduction"),
        *("grad", "grads", "gradient"),
    }
)
_BESIDE_LOSSES = frozenset(  # in a folder of losses, as CleanRL and Stable-Baselines3 name theirs
    {"entropy", "kl", "variance", "clipfrac", "fraction", "lr", "beta", "alpha", "temperature", "values"}
)
_TIMES = r"time|elapsed|latency|runtime|wall(?:time|clock)?|ttft|tpot|duration|s|secs?|seconds?|minutes?|hours?|[mun]s"
_SPEEDS = r"throughput|bandwidth|[fsqt]ps|[kmgtpe]?flops?|[mg]?teps|[mgt]l?ups"
_ERROR = re.compile(_ERRORS)
_DURATION_OR_RATE = re.compile(rf"{_TIMES}|{_SPEEDS}")
_LESS = re.compile(rf"{_ERRORS}|{_TIMES}|energy|power|memory|cost|rss|l[12]|k?j|k?w")
_MORE = re.compile(
    rf"{_SPEEDS}|\w*acc|accuracy|precision|recall|f1|auc|auroc|a[pr]|m?ap\d*|m?iou|dice|bleu|rouge\d*|psnr|ssim|rew|"
    r"rewards?|returns?|r2|ndcg|top\d*|speedup|fom|performance|likelihood|efficiency|savings?|saved|reduction"
)
_SCORE = "score"  # more is better, unless another word says of what: brier_score
_PERCENTILE = re.compile(r"p9\d+")  # of a latency, unless another word says of what: throughput_p99
_TURNED = frozenset({"neg", "negative"})  # neg_mean_squared_error, negative_log_likelihood
_COUNTS = frozenset({"epochs", "steps", "iterations", "samples", "updates"})  # until something is reached
_COUNTED = r"(?:[kmg]i?b|bytes|tok|tokens|words|samples|images|frames|steps|its?|[kmgtpe]?flops?|[kmgtpe]?ops)"
_EACH = (  # tokens/s/gpu, mop/s total
    r"(?:(?:_?per_|/)(?:gpu|device|accelerator|chip|core|rank|node|thread|process)"
    r"|[_ ](?:total|sum|overall|aggregate|average|avg|mean|median))?$"
)
_EACH_JOULE = r"per_?(?:k?w|watts?|k?j|joules?|k?wh)$"
# samples_per_s, GFLOP/s, GFLOPs and, as a rule may call what is printed as tok/s, tok_s
_RATE = re.compile(
    rf"(?:per_?|/)(?:s|sec|second|seconds|min|minute|h|hour|day){_EACH}|(?<![A-Za-z])[fpnu]s_day{_EACH}|{_EACH_JOULE}"
    rf"|(?<![A-Za-z]){_COUNTED}_(?:s|sec){_EACH}|(?<![A-Za-z])[kmgtpe]flops?{_EACH}",
    re.IGNORECASE,
)
_REWARDS = frozenset({"rew", "reward", "rewards", "return", "returns"})
_HELD_OUT = frozenset({"val", "valid", "validation", "test", "eval", "evaluation", "dev"})
_OF_OBJECTS = re.compile(r"(?<![A-Za-z])(m?a[pr])_[sml](?![A-Za-z])", re.IGNORECASE)  # small, medium, large: no second
_WORD = re.compile(r"[A-Z]?[a-z]+[0-9]*|[A-Z]+(?![a-z])[0-9]*|[0-9]+")


def goal_by_name(metric: str) -> Goal | None:
    """Return the direction that the words of the name *metric* tell, the last of them first; None where none does.

    >>> [goal and goal.name for goal in map(goal_by_name, ["valid_ppl", "topAcc", "time_s", "mb_s", "depth"])]
    ['min', 'max', 'min', 'max', None]
    >>> [goal and goal.name for goal in map(goal_by_name, ["neg_log_loss", "time_to_accuracy", "text_to_image_fid"])]
    ['max', 'min', 'min']
    """
    if is_rate(metric):
        return Goal.max
    words = _words(metric)
    if {"per", "bits"} <= {*words}:  # of a dimension, a character
        return Goal.min
    if "to" in words:  # what is counted until something is reached, be that an accuracy
        counted = words[: words.index("to")]
        if not _COUNTS.isdisjoint(counted) or _told(counted) is Goal.min:
            return Goal.min
    told = _told(words)
    if told is None or _TURNED.isdisjoint(words):
        return told
    return Goal.min if told is Goal.max else Goal.max


def most_telling(metrics: Iterable[str]) -> list[str]:
    """Return *metrics* by how much their names tell of a training, the most first.

    These are a reward, to which a loss is a means, then a loss, then what is better when higher, or lower; among these
    that of data that was held out. The folder that a name stands in does not make a loss of it.

    >>> most_telling(["epoch", "losses/entropy", "losses/value_loss", "sps", "val_loss"])
    ['val_loss', 'losses/value_loss', 'sps', 'losses/entropy', 'epoch']
    >>> most_telling(["train/loss", "rollout/ep_rew_mean"])
    ['rollout/ep_rew_mean', 'train/loss']
    """
    return sorted(metrics, key=lambda metric: (*_how_telling(metric), len(metric), metric))


def shown_metric(objective: str | None, reported: Iterable[str]) -> str | None:
    """Return the metric of those *reported* by which a run is shown: its *objective*, else the most telling.

    None where nothing was reported.

    >>> shown_metric("accuracy", ["loss", "accuracy"]), shown_metric("accuracy", ["epoch", "loss"])
    ('accuracy', 'loss')
    """
    names = list(reported)
    return objective if objective in names else next(iter(most_telling(names)), None)


def training_loss(reported: Iterable[str]) -> str | None:
    """Return the loss of those *reported* that the training itself made small, not one of data that was held out.

    >>> training_loss(["val_loss", "train/loss", "train/loss_scale"]), training_loss(["val_loss"])
    ('train/loss', None)
    """
    losses = (name for name in most_telling(reported) if is_loss(name))
    return next((name for name in losses if _HELD_OUT.isdisjoint(_words(name))), None)


def _how_telling(metric: str) -> tuple[int, bool]:
    name = metric.rpartition("/")[2]
    if not _REWARDS.isdisjoint(_words(name)):
        rank = 0
    elif "loss" in name.lower() and is_loss(name):
        rank = 1
    else:
        rank = {Goal.max: 2, Goal.min: 3, None: 4}[goal_by_name(name)]
    return rank, _HELD_OUT.isdisjoint(_words(metric))


def _words(metric: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(_OF_OBJECTS.sub(r"\1", metric))]


def is_rate(metric: str) -> bool:
    """Whether *metric* is so much per time or energy; the ``loss/min`` is no rate but the least one."""
    found = _RATE.search(metric)
    return found is not None and (found[0].lower() != "/min" or _told(_words(metric[: found.start()])) is None)


def is_speed(metric: str) -> bool:
    """Whether *metric* is so much per time, so that a ratio of two is a speed-up.

    >>> [is_speed(name) for name in ("gflops", "tokens_per_s", "throughput", "gflops_per_watt", "time_s")]
    [True, True, True, False, False]
    """
    is_more = is_duration_or_rate(metric) and goal_by_name(metric) is Goal.max
    return is_more and re.search(_EACH_JOULE, metric, re.IGNORECASE) is None


def is_loss(metric: str) -> bool:
    """Whether *metric* is what a training makes small: one that is no number any more has ended it.

    >>> [is_loss(name) for name in ("loss", "train/loss_epoch", "Loss/train", "cross_entropy", "val_ppl")]
    [True, True, True, True, True]
    >>> [is_loss(name) for name in ("loss_scale", "loss_ms", "packet_loss", "policy_entropy", "losses/clipfrac")]
    [False, False, False, False, False]
    """
    folder, _, name = metric.rpartition("/")
    words = _words(name)
    if (at := _place_of_loss(words)) is None:
        inside = _words(folder)
        is_of_loss = _place_of_loss(inside) is not None and _OF_OTHERS.isdisjoint(inside)
        return is_of_loss and _told(words) is not Goal.max and (_BESIDE_LOSSES | _OF_A_LOSS).isdisjoint(words)
    behind = words[at + 1 :]
    is_time = any(len(word) > 1 and re.fullmatch(_TIMES, word) for word in behind[-1:])
    return _OF_OTHERS.isdisjoint(words) and _OF_A_LOSS.isdisjoint(behind) and not is_time and not is_rate(metric)


def _place_of_loss(words: Sequence[str]) -> int | None:
    """Return where the last of *words* stands that is one for a loss; None where none is."""
    places = [at for at, word in enumerate(words) if _LOSSES.fullmatch(word)]
    places += [at + 1 for at, pair in enumerate(pairwise(words)) if pair == ("cross", "entropy")]
    return max(places, default=None)


def _told(words: Sequence[str]) -> Goal | None:
    for word in reversed(words):
        if _LESS.fullmatch(word):
            return Goal.min
        if _MORE.fullmatch(word):
            return Goal.max
    if _SCORE in words:
        return Goal.max
    return Goal.min if any(map(_PERCENTILE.fullmatch, words)) else None


def is_duration_or_rate(metric: str) -> bool:
    """Whether the name *metric* is that of a time or of something per time that a program takes, and not learns.

    Learnt are a time until a quality is there, and an error that is a time.

    >>> [is_duration_or_rate(name) for name in ("elapsed_s", "GFLOP/s", "val_loss", "time_to_accuracy", "fom")]
    [True, True, False, False, False]
    >>> [is_duration_or_rate(name) for name in ("bbox_mAP_s", "rmse_s", "memory_bandwidth", "mixed_precision_gflops")]
    [False, False, True, True]
    """
    words = _words(metric)
    if "to" in words or "until" in words or any(map(_ERROR.fullmatch, words)):
        return False
    return is_rate(metric) or any(map(_DURATION_OR_RATE.fullmatch, words[-1:]))
