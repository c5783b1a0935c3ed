"""What a row of a comparison says, as one sentence in plain words: the first thing that a reader sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from hpcml.model.comparison import Cell, Comparison, Losses, Row, Verdict
from hpcml.model.told_apart import alike_words
from hpcml.report.comparison_rows import difference_decimals
from hpcml.report.document import Finding
from hpcml.report.quantities import VERDICT_TONES
from hpcml.report.text import ratio, to_decimals

AFTERWARDS = "given on the command line, afterwards: fix it beforehand (objective.margin)"
ENOUGH_IS_SAID = "indicative only"  # a flag of rows with few seeds, which findings say in their own words

_UNSTABLE: frozenset[Verdict] = frozenset({"unstable", "unstable reference"})
_LEAST, _ENOUGH = 3, 5  # seeds: for a verdict at all, and for one that is worth printing
_WORDS: Mapping[Verdict, str] = {
    "identical": "the same values in every seed; did the two compute different things?",
    "equivalent": "no difference that matters",
    "better": "better",
    "non-inferior": "not worse by the margin, and perhaps better",
    "worse by more than the margin": "worse, and by more than the margin",
    "worse": "worse, though perhaps by less than the margin",
    "inconclusive": "these runs cannot tell",
    "no margin": "no verdict, since no margin says which difference matters",
    "no goal": "no verdict, since nothing tells which way is better (--goal max or min)",
    "not proven": "no verdict, since it was not measured in which precision it, or its reference, computed",
    "not as requested": "no verdict, since it, or its reference, was seen to compute in another precision",
}


def sentence(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return what *row* says: verdict, difference, 90 % interval, margin, and whether the seeds are enough.

    For example: "no difference that matters: -0.006, between -0.020 and +0.009, margin 0.02; 5 seeds".
    """
    numbers, seeds = ", ".join(_interval(cell, row)), _seeds(cell, row)
    return f"{_found(comparison, cell, row)}{f', {numbers}' if numbers else ''}{f'; {seeds}' if seeds else ''}"


def _found(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return the verdict in words with the difference: "no difference that matters: -0.006"."""
    if row.difference is None:
        difference = f"no {comparison.metric} to compare"
    else:
        difference = to_decimals(row.difference.value, difference_decimals(cell), signed=True)
        if row.verdict in _UNSTABLE:
            is_lost = row.losses is None or bool(row.losses.n) or not row.losses.n_diverged
            difference = f"{'survivors' if is_lost else 'values'} differ by {difference}"
    return f"{_said(comparison, cell, row)}: {difference}"


def _said(comparison: Comparison, cell: Cell, row: Row) -> str:
    """Return the verdict in words; of one that an interval alone does not explain, also the reason."""
    if row.verdict in _UNSTABLE:
        return _unstable(comparison, cell, row)
    said = _WORDS.get(row.verdict, row.verdict)
    if row.verdict_alone is not None and row.verdict_alone not in _UNSTABLE:
        alone = _WORDS.get(row.verdict_alone, row.verdict_alone)
        among = "cannot tell" if row.verdict == "inconclusive" else f"{said},"
        return f"{among} among {comparison.n_tests} rows (Holm); alone it would be: {alone}"
    if row.verdict != "inconclusive":
        return said
    if row.difference is not None and row.difference.has_no_spread:
        advice = "" if row.sd else "see that the program takes its seed, and "
        return (
            "no verdict, since the difference is the same for each seed, and nothing says how certain it is "
            f"({advice}report the metric with all its digits)"
            if row.unit == "seeds"
            else f"no verdict, since all runs of an arm have the same {comparison.metric} (print all its digits)"
        )
    return _WORDS[row.verdict]


def _unstable(comparison: Comparison, cell: Cell, row: Row) -> str:
    reference = next((each for each in cell.rows if each.verdict == "reference"), None)
    if diverged := _diverged(row, reference):
        ours, theirs = diverged
        return f"{row.verdict}: a loss was no number at the last in {ours} of its runs, of {cell.reference} in {theirs}"
    ours, theirs = (_lost(None if each is None else each.losses) for each in (row, reference))
    if all(each is None or each.losses is None or each.losses.n == each.n_without_metric for each in (row, reference)):
        without = f"completed without any {comparison.metric}"
        return f"{row.verdict}: {ours} of its runs {without}, of {cell.reference} {theirs}"
    unit = "runs" if row.losses is None else row.losses.unit
    return f"{row.verdict}: lost {ours} of its {unit} to their own doing, {cell.reference} lost {theirs}"


def _diverged(row: Row, reference: Row | None) -> list[str]:
    """Return of how many runs with a value a loss was no number at the last; nothing where others were lost."""
    known = [(each.losses, each.n_ok) for each in (row, reference) if each is not None and each.losses is not None]
    if len(known) < 2 or any(of.n for of, _ in known) or not any(of.n_diverged for of, _ in known):
        return []
    return [f"{of.n_diverged} of {n}" for of, n in known]


def _lost(losses: Losses | None) -> str:
    return "an unknown number" if losses is None else f"{losses.n} of {losses.n_ended}"


def _interval(cell: Cell, row: Row) -> Iterator[str]:
    """Yield the ends of the interval that the verdict rests on, and the margin; nothing without a difference."""
    difference = row.difference
    if difference is None:
        return
    if difference.ci90 is not None:
        bounds = difference.ci90.low, difference.ci90.high
        low, high = (to_decimals(end, difference_decimals(cell), signed=True) for end in bounds)
        yield f"between {low} and {high}"
    if cell.margin is not None:
        yield f"margin {cell.margin:g}"


def of_all(cell: Cell, rows: Sequence[Row]) -> str:
    """Return the margin that *rows* are judged by, and how many seeds each has, or the one that has the fewest."""
    counted = [row for row in rows if row.n_units]
    said = dict.fromkeys(_seeds(cell, row) for row in counted)
    fewest = min(counted, key=lambda row: _n_compared(cell, row), default=None)
    seeds = list(said)
    if fewest is not None and len(said) > 1:
        n = _n_compared(cell, fewest)
        few = f"the fewest are of {fewest.level}, {_seeds(cell, fewest)}"
        seeds = [f"{n} {fewest.unit} or more" if n >= _ENOUGH else few]
    return "; ".join([*([] if cell.margin is None else [f"margin {cell.margin:g}"]), *seeds])


def _n_compared(cell: Cell, row: Row) -> int:
    """Return how many seeds, or runs, *row* is judged by: pairs, or those of the arm with fewer."""
    if row.difference is not None and row.difference.paired:
        return row.difference.n_pairs or row.n_units
    return min([row.n_units, *(each.n_units for each in cell.rows if each.verdict == "reference")])


def _seeds(cell: Cell, row: Row) -> str:
    """Return how many seeds there are and whether they are enough; "" without any.

    Of a row that is not paired it is the arm with fewer that decides.
    """
    n = row.n_units
    if n == 0:
        return ""
    counted = f"{n} {row.unit if n > 1 else row.unit[:-1]}"
    reference = next((each.n_units for each in cell.rows if each.verdict == "reference"), n)
    if row.difference is not None and row.difference.paired:
        n = row.difference.n_pairs or n
        counted = f"{n} seed{'s'[: n != 1]}"
        if row.difference.left_out:
            counted = f"{n} seeds that both arms have (means are of all)"
    elif reference < n:
        counted, n = f"{counted} against {reference} of {cell.reference}", reference
    if n < _LEAST:
        return f"{counted}: too few for a verdict, take {_ENOUGH}"
    return counted if n >= _ENOUGH else f"{counted}: enough for a look, take {_ENOUGH} for a paper"


def findings_of(comparison: Comparison, *, so_far: bool = False) -> Iterator[Finding]:
    """Yield a conclusion for each row but the reference, cell by cell, in the words of `sentence`.

    *so_far*: the verdict of a row of which runs have not ended says that, too. Beside the difference there are the
    ratios of speed, energy and time to the target that are known.
    """
    for cell in comparison.cells:
        for row in cell.rows:
            if row.verdict != "reference":
                found = _finding(comparison, cell, row)
                yield replace(found, verdict=f"{found.verdict}, so far") if so_far and row.awaited else found


def _finding(comparison: Comparison, cell: Cell, row: Row) -> Finding:
    sure = [", ".join(_interval(cell, row)), _seeds(cell, row)]
    return Finding(
        verdict=row.verdict,
        tone=VERDICT_TONES.get(row.verdict, "plain"),
        about=f"{row.level} against {cell.reference}",
        where=heading(cell),
        asked=_asked(comparison, cell, row.level),
        found="; ".join([_found(comparison, cell, row), *_ratios(cell, row)]),
        sure="; ".join(filter(None, sure)),
        doubts=list(_doubts(cell, row)),
    )


def _asked(comparison: Comparison, cell: Cell, level: str | None) -> str:
    """Return "does precision tf32 change val_accuracy by 0.02 or more, against fp32? higher is better"; None: each."""
    by_much = "" if cell.margin is None else f" by {cell.margin:g} or more"
    which = f"each {comparison.by}" if level is None else f"{comparison.by} {level}"
    return f"does {which} change {comparison.metric}{by_much}, against {cell.reference}? {comparison.way}"


def _doubts(cell: Cell, row: Row) -> Iterator[str]:
    """Yield what weakens the conclusion: what else differs, the order of the runs, the margin, then the row's own."""
    for confounder in cell.confounders:
        yield f"CONFOUNDED by {confounder.kind} {confounder}"
    yield from cell.remarks
    if cell.margin_source == "command line":
        yield f"the margin was {AFTERWARDS}"
    yield from (flag for flag in row.flags if ENOUGH_IS_SAID not in flag)
    if row.losses is not None and row.losses.n and row.verdict not in _UNSTABLE:
        yield f"lost {_lost(row.losses)} of its {row.losses.unit} to their own doing"


def _ratios(cell: Cell, row: Row) -> Iterator[str]:
    if row.speed and row.speed.speedup is not None:
        yield f"{ratio(row.speed.speedup, row.speed.speedup_ci95)} times as fast as {cell.reference}"
    if row.cost and row.cost.energy_ratio is not None:
        yield f"{ratio(row.cost.energy_ratio, row.cost.energy_ratio_ci95)} times its energy per sample"
    if row.to_target and row.to_target.ratio is not None:
        reached = f"reached {row.to_target.target:g} in {row.to_target.reached} of {row.to_target.n} runs"
        yield f"{ratio(row.to_target.ratio, row.to_target.ratio_ci95)} times its time to the target ({reached})"


def heading(cell: Cell) -> str:
    """Return the settings that all runs of *cell* have in common, in one line; "" where there are none."""
    parts = alike_words(cell.where)
    if cell.batch_size is not None and "training.batch_size" not in cell.where:
        parts.append(f"batch size {cell.batch_size}")
    if cell.device is not None:
        parts.append(f"device {cell.device}")
    return " · ".join(parts)
