"""`hpcml runs --best`: the best runs by a metric."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.analysis.ranking import Ranked, Ranking
from hpcml.codec import encode
from hpcml.report.document import Column, Document, Listing, written
from hpcml.report.runs import name_heading, name_words, precision_words, uid_words
from hpcml.report.text import number


def ranking_document(ranking: Ranking) -> Document:
    """Return a line for each run, the best first; with groups, group by group.

    In JSON `ranked` has an object for each run; its `group` has the values of the settings that made the groups, by
    name, and its `settings` those of a few that the candidates differ in; in CSV these are ``group.KEY`` and
    ``setting.KEY``. `alike_mean` is the mean of the `alike_n` completed runs that differ from it in nothing but their
    seed: over their `alike_seeds` seeds, of which each has the mean of its runs. `diverged` names its losses that were
    no number at the last. `candidates` and `without` count the runs that had a value, and those that had none.
    """
    fields = {key: encode(getattr(ranking, key)) for key in ("metric", "goal", "at", "candidates", "without")}
    listed = [
        {
            "place": each.place,
            "group": dict(zip(ranking.by, map(encode, each.group), strict=True)),
            "settings": dict(zip(ranking.differ, map(encode, each.settings), strict=True)),
            "value": each.value,
            "step": each.step,
            "alike_n": each.alike_n,
            "alike_seeds": each.alike_seeds,
            "alike_mean": encode(each.alike_mean),
            "diverged": list(each.diverged),
            **{name: encode(getattr(each.run, name)) for name in _FIELDS},
        }
        for each in ranking.ranked
    ]
    record = {**fields, "by": list(ranking.by), "ranked": listed}
    return Document.of(Listing(columns=list(_columns(ranking)), rows=ranking.ranked), record=record)


def _columns(ranking: Ranking) -> Iterator[Column[Ranked]]:
    """Yield the columns, those of people and those of programs, in the order of each."""
    runs = [each.run for each in ranking.ranked]
    named, show_uid = name_heading(runs), uid_words(runs)
    yield Column("place", "", lambda each: each.place)
    yield from (_chosen(f"group.{key}", key, "group", index) for index, key in enumerate(ranking.by))
    yield Column("", "run", lambda each: each.run.uid, lambda each: show_uid(each.run.uid))
    yield Column("", "experiment", lambda each: each.run.experiment)
    yield Column("", named, lambda each: name_words(each.run, named))
    yield Column("", "precision", lambda each: precision_words(each.run))
    yield from (_chosen(f"setting.{key}", key, "settings", index) for index, key in enumerate(ranking.differ))
    yield Column("", "seed", lambda each: each.run.seed)
    yield Column("", "state", lambda each: each.run.state.value)
    yield Column("metric", None, lambda _: ranking.metric)
    yield Column("value", ranking.metric, lambda each: each.value, lambda each: number(each.value, 6))
    yield Column("step", "at step", lambda each: each.step)
    yield from (_field(name) for name in _FIELDS)
    yield Column("alike_n", None, lambda each: each.alike_n)
    averaged = _averaged(ranking)
    yield Column(
        "alike_mean",
        f"its {averaged}' mean" if averaged else None,
        lambda each: each.alike_mean,
        lambda each: _mean_words(each, averaged),
    )
    yield Column("alike_seeds", None, lambda each: each.alike_seeds)
    yield Column("diverged", "diverged", lambda each: ", ".join(each.diverged))


def _chosen(key: str, heading: str, name: str, index: int) -> Column[Ranked]:
    def text(each: Ranked) -> str:
        value = getattr(each, name)[index]
        return f"{value:g}" if isinstance(value, float) else written(value)  # no more digits than typed

    return Column(key, heading, lambda each: getattr(each, name)[index], text)


def _field(name: str) -> Column[Ranked]:
    return Column(name, None, lambda each: getattr(each.run, name))


def _mean_words(each: Ranked, averaged: str | None) -> str:
    n = each.alike_n if averaged == "repeats" else each.alike_seeds
    return f"{number(each.alike_mean)} of {n}" if n else ""


def ranking_remark(ranking: Ranking) -> str:
    """Return one line on which metric was ranked, which way, and how many runs have it; it stands below the table."""
    which = "the value that a run ended with" if ranking.at == "last" else "the best value that a run ever had"
    without = f"; {ranking.without} without a finite value of it" if ranking.without else ""
    of_what = _averaged(ranking)
    among = (
        f". A best run is lucky among its {of_what}: expect what its settings have on average (hpcml compare)"
        if of_what
        else ""
    )
    counted = "1 run" if ranking.candidates == 1 else f"{ranking.candidates} runs"
    ended = [each for each in ranking.ranked if each.diverged]
    of_ended = (
        f". {len(ended)} of those listed diverged, a loss ended nan or infinite: their value may be from before"
        if ended
        else ""
    )
    return f"{counted} with {ranking.metric}{without}; {ranking.goal} of {which}{among}{of_ended}"


def _averaged(ranking: Ranking) -> str | None:
    """Return of what several have the same settings, so that a mean stands beside a run: seeds, or repeats."""
    if any(each.alike_seeds > 1 for each in ranking.ranked):
        return "seeds"
    return "repeats" if any(each.alike_n > 1 for each in ranking.ranked) else None


_FIELDS = ("uid", "experiment", "name", "precision", "seed", "state")
