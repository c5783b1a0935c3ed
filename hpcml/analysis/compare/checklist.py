"""Answers to what a reviewer asks of a comparison, out of the records of its runs and of their experiments alone.

The questions are those of the NeurIPS Paper Checklist and of MLPerf's training rules (`hpcml.model.checklist` has the
addresses) which records can answer. What they do not say is left open; nothing is guessed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpcml.analysis.compare.arms import Arm, sort_runs
from hpcml.analysis.compare.cells import group_runs
from hpcml.analysis.compare.factor import SOFTWARE, Factor, find_factor
from hpcml.analysis.compare.fairness import order_remarks, settings_of
from hpcml.model.checklist import Attempts, Checklist, ChecklistAnswer, Hours
from hpcml.model.comparison import NOT_PROVEN, Cell, Comparison, Row
from hpcml.model.mig import gpus_of_run
from hpcml.model.own_program import says_nothing
from hpcml.model.precision import PrecisionName
from hpcml.model.records import RunRecord
from hpcml.model.state import State
from hpcml.model.told_apart import show

_REPRODUCE, _OPEN, _DETAILS, _STATISTICS, _COMPUTE = (f"NeurIPS {item}" for item in range(4, 9))
_MLPERF_RUNS, _MLPERF_SYSTEM = "MLPerf Benchmark Results", "MLPerf General rules"
_MLPERF_HYPER, _MLPERF_FORMATS = "MLPerf Hyperparameters", "MLPerf Numerical formats"
_TUNED = ("training.", "workload.args.", "model.options")  # settings that people tune
_SHOWN = ("training.optimizer", "training.learning_rate", "training.batch_size", "training.steps", "training.epochs")
_LISTED = 4  # values of one thing, in a line that people read
_HOUR_S = 3600
_VISIBLE = "env.CUDA_VISIBLE_DEVICES"  # empty where the run was given no GPU
_HARDWARE = ("gpu_model", "gpu_driver", "cpu_model", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Study:
    """What is asked about: a comparison, its runs by uid, and what else their experiments tried."""

    comparison: Comparison
    factor: Factor
    runs: Sequence[RunRecord]
    others: Sequence[RunRecord]
    arms: Mapping[int, Sequence[Arm]]  # by the cell's place

    def lines(self, told: Callable[[Cell, Sequence[Arm]], Iterable[str]]) -> tuple[str, ...]:
        """Return what *told* says of each cell, with its name in front where there are several."""
        cells = self.comparison.cells
        own = _names(cells)
        found = [(name, told(cell, self.arms[at])) for at, (cell, name) in enumerate(zip(cells, own, strict=True))]
        return tuple(f"{name}: {line}" if name else line for name, lines in found for line in lines)

    def of_levels(self, told: Callable[[Cell], Iterable[tuple[str, str]]]) -> tuple[str, ...]:
        """Return what *told* says of each level of each cell, once for all levels of which it says the same."""
        return self.lines(lambda cell, _: _together(told(cell)))


def check(
    comparison: Comparison,
    runs: Sequence[RunRecord],
    *,
    others: Sequence[RunRecord],
    attempts: Attempts,
) -> Checklist:
    """Return the answers about *comparison*, which was made of *runs*.

    *others* are the remaining runs of their experiments, *attempts* those of all of them.
    """
    factor = find_factor(comparison.by, runs)
    by_uid = {run.uid: run for run in runs}
    groups = group_runs(runs, comparison.by, comparison)
    arms = {
        at: [sort_runs(level.name, [by_uid[uid] for uid in level.uids], comparison.metric) for level in group.levels]
        for at, group in enumerate(groups)
    }
    study = _Study(comparison=comparison, factor=factor, runs=runs, others=others, arms=arms)
    hours, all_hours = find_hours(runs, attempts), find_hours([*runs, *others], attempts)
    answers = [
        _answer("seeds", "Which seeds, and how many an arm?", study.of_levels(_seeds), _STATISTICS, _MLPERF_RUNS),
        _answer("value", "Which number of a run counts?", [_value(comparison)], _STATISTICS, _DETAILS),
        _answer("pairing", "What is the interval of, and are arms paired?", study.of_levels(_pairing), _STATISTICS),
        _answer("interleaving", "Did the arms run interleaved, on the same nodes?", study.lines(_interleaving),
                _STATISTICS, _MLPERF_SYSTEM),
        _answer("lost_runs", "Which runs were lost, and to what?", study.of_levels(_lost), _STATISTICS, _MLPERF_RUNS),
        _answer("margin", "Was the difference that matters fixed beforehand?", study.lines(_margin), _STATISTICS),
        _answer("tests", "How many tests, and were they adjusted?", [_tests(comparison)], _STATISTICS),
        _answer("tuning", "Which hyperparameters, and were they tuned for each arm alike?", _tuning(study), _DETAILS,
                _MLPERF_HYPER),
        _answer("code", "Which code ran?", _code(runs), _REPRODUCE, _OPEN),
        _answer("packages", "Which software was installed?", _software(runs), _REPRODUCE, _MLPERF_SYSTEM),
        _answer("hardware", "Which hardware, and the same for all?", _hardware(study), _COMPUTE, _MLPERF_SYSTEM),
        _answer("precision", "Was the precision measured, or only asked for?", study.of_levels(_precision),
                _MLPERF_FORMATS),
        _answer("hours", "Hours that these runs used, lost attempts included?", _hours(hours), _COMPUTE),
        _answer("all_hours", "And all runs of their experiments?", _hours(all_hours), _COMPUTE),
    ]  # fmt: skip
    return Checklist(answers=tuple(answers), hours=hours, all_hours=all_hours)


def find_hours(runs: Sequence[RunRecord], attempts: Attempts) -> Hours:
    """Return the hours that *runs* held nodes and GPUs over all *attempts*.

    A run without any recorded attempt (another tool ran it) counts with its own time.
    """
    total: Counter[str] = Counter()
    sums: defaultdict[str, list[float]] = defaultdict(list)
    gpus_known = True
    for run in runs:
        nodes, gpus = _nodes(run), _gpus(run)
        for wall_s, counts, is_over in _walls(run, attempts):
            total["attempts"] += 1
            if wall_s is None:
                total["unknown" if is_over else "running"] += 1
                continue
            hours = wall_s / _HOUR_S
            lost = not counts or (run.state.is_final and run.state is not State.COMPLETED)
            gpus_known = gpus_known and gpus is not None
            sums["node"].append(nodes * hours)
            sums["gpu"].append((gpus or 0) * hours)
            sums["lost node"].append(nodes * hours * lost)
            sums["lost gpu"].append((gpus or 0) * hours * lost)
    return Hours(
        n_runs=len(runs),
        n_attempts=total["attempts"],
        node_h=math.fsum(sums["node"]),
        gpu_h=math.fsum(sums["gpu"]) if gpus_known else None,
        lost_node_h=math.fsum(sums["lost node"]),
        lost_gpu_h=math.fsum(sums["lost gpu"]) if gpus_known else None,
        n_unknown=total["unknown"],
        n_running=total["running"],
    )


def _walls(run: RunRecord, attempts: Attempts) -> Iterator[tuple[float | None, bool, bool]]:
    """Yield the seconds of each attempt of *run*, whether its work counts, and whether it is over."""
    known = attempts.get(run.uid, ())
    if not known and run.wall_s is not None:
        yield run.wall_s, True, True
    for attempt in known:
        yield attempt.wall_s, attempt.counts, attempt.state.is_final


def _nodes(run: RunRecord) -> int:
    nodes = run.params.get("resources.nodes")
    return nodes if isinstance(nodes, int) else 1


def _gpus(run: RunRecord) -> int | None:
    """Return the GPUs of *run* over all nodes; None: not known."""
    if run.usage is not None and run.usage.gpus:
        return run.usage.gpus
    if run.facts.get("device") == "cpu" or run.facts.get("n_gpus") == 0 or run.facts.get(_VISIBLE) == "":
        return 0
    per_node = gpus_of_run(run.params)
    return _nodes(run) * per_node if isinstance(per_node, int) else None


def _answer(key: str, question: str, lines: Iterable[str], *asked_by: str) -> ChecklistAnswer:
    return ChecklistAnswer(key=key, question=question, lines=tuple(lines), asked_by=asked_by)


def _together(told: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield what is told of each level, once for all levels of which the same is told."""
    levels: dict[str, list[str]] = {}
    for level, text in told:
        levels.setdefault(text, []).append(level)
    for text, of in levels.items():
        yield f"{'each arm' if len(levels) == 1 < len(of) else ', '.join(of)}: {text}"


def _names(cells: Sequence[Cell]) -> list[str]:
    """Return what tells each cell from the others; "" for a single one."""
    if len(cells) < 2:
        return [""]
    keys = [key for key in cells[0].where if len({cell.where.get(key) for cell in cells}) > 1]
    keys += [key for cell in cells for key in cell.where if key not in cells[0].where and key not in keys]
    return [", ".join(f"{key}={cell.where[key]}" for key in keys if key in cell.where) or "all runs" for cell in cells]


def _seeds(cell: Cell) -> Iterator[tuple[str, str]]:
    for row in cell.rows:
        seeds = f" ({_ranges(row.seeds)})" if row.seeds else ""
        repeated = f" in {row.n_ok} runs" if row.n_ok != len(row.seeds) else ""
        unit = ", each of which counts: a time or a rate" if row.unit == "runs" else ""
        yield row.level, f"{len(row.seeds)}{seeds}{repeated}{unit}"


def _ranges(seeds: Sequence[int]) -> str:
    """Return *seeds*, which ascend, with neighbours joined.

    >>> _ranges([0, 1, 2, 5, 7, 8])
    '0-2, 5, 7-8'
    """
    runs = [[seed for _, seed in of] for _, of in groupby(enumerate(seeds), key=lambda pair: pair[1] - pair[0])]
    shown = [str(of[0]) if len(of) == 1 else f"{of[0]}-{of[-1]}" for of in runs]
    more = len(shown) - 2 * _LISTED
    return ", ".join(shown[: 2 * _LISTED]) + (f" and {more} more ranges" if more > 0 else "")


def _value(comparison: Comparison) -> str:
    guess = " (guessed from its name)" if comparison.goal_source == "metric name" else ""
    return f"the last value of {comparison.metric}, not the best; {comparison.way}{guess}"


def _pairing(cell: Cell) -> Iterator[tuple[str, str]]:
    for row in cell.rows:
        difference = row.difference
        if difference is None:
            continue
        if difference.paired:
            left = f", left out: {_ranges(difference.left_out)}" if difference.left_out else ""
            how = f"paired by seed over {difference.n_pairs} seeds{left}"
        elif row.unit == "runs":
            how = "not paired, Welch's t: repeats of one seed"
        else:
            how = "not paired, Welch's t: fewer than three seeds are shared, or less than half"
        yield row.level, f"{how}; 90 % t interval over {row.unit}"


def _interleaving(_: Cell, arms: Sequence[Arm]) -> Iterator[str]:
    if len(arms) < 2:
        return
    counted = [run for arm in arms for run in arm.ok]
    if not counted or any(run.t_start is None or "hostname" not in run.facts for run in counted):
        return
    found = order_remarks(arms)
    yield from found
    if not found:
        hosts = len({run.facts["hostname"] for run in counted})
        yield f"{len(counted)} runs on {hosts} node{'s'[: hosts != 1]}; none ran an arm's runs, then those of another"


def _lost(cell: Cell) -> Iterator[tuple[str, str]]:
    for row in cell.rows:
        losses = row.losses
        if losses is None:
            continue
        rate = f" ({losses.rate_ci90.low:.0%} to {losses.rate_ci90.high:.0%})" if losses.rate_ci90 else ""
        parts = [f"{losses.n} of {losses.n_ended} {losses.unit} to its own doing{rate}"]
        parts += [f"{losses.n_elsewhere} to a machine, a scheduler or a person"] if losses.n_elsewhere else []
        parts += [f"{row.n_incomplete} with incomplete records"] if row.n_incomplete else []
        parts += [f"{row.n_unfinished} not over"] if row.n_unfinished else []
        yield row.level, f"{', '.join(parts)}"


def _margin(cell: Cell, _: Sequence[Arm]) -> Iterator[str]:
    if cell.margin is None:
        yield "no: no margin was given"
    elif cell.margin_source == "config":
        yield f"yes: {cell.margin:g}, stored with each run before it started"
    else:
        yield f"no: {cell.margin:g}, given on the command line afterwards"


def _tests(comparison: Comparison) -> str:
    m = comparison.n_tests
    if m == 0:
        return "none"
    kinds = "equivalent, better, non-inferior and worse each at 5 %, one-sided"
    return f"{m}: {kinds}" + ("; adjusted by Holm over all rows" if m > 1 else "; a single row needs no adjustment")


def _tuning(study: _Study) -> Iterator[str]:
    """Yield the settings of the compared runs, then what their experiments tried for each arm."""
    tuned = [key for key in settings_of(study.runs) if key.startswith(_TUNED) and not study.factor.is_about(key)]
    for key in (key for key in tuned if key in _SHOWN or key.startswith("workload.args.")):
        said = [run.params for run in study.runs if not says_nothing(run.params, key)]
        values = {show(params.get(key)) for params in said if params.get(key) is not None}
        if values:
            yield f"{key}: {_listed(sorted(values))}"
    levels = {row.level for cell in study.comparison.cells for row in cell.rows}
    tried: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)
    everyone = [*study.runs, *study.others]
    keys = [key for key in settings_of(everyone) if key.startswith(_TUNED) and not study.factor.is_about(key)]
    for run in everyone:
        if (level := study.factor.level(run)) in levels:
            tried[level].add(tuple(show(run.params.get(key)) for key in keys))
    counts = {level: len(of) for level, of in tried.items()}
    same = "the same number for each arm" if len(set(counts.values())) == 1 else "not the same number for each arm"
    shown = ", ".join(
        f"{level} {n}" for level, n in sorted(counts.items(), key=lambda pair: study.factor.sort_key(pair[0]))
    )
    if set(counts.values()) == {1}:
        yield "one setting was tried for each arm: whether it was chosen for one of them elsewhere is not recorded"
    elif counts:
        yield f"settings tried in these experiments: {shown}: {same}"


def _code(runs: Sequence[RunRecord]) -> Iterator[str]:
    codes = Counter(str(run.facts["code"]) for run in runs if run.facts.get("code") is not None)
    if codes:
        yield f"digest of the copy that was kept {_counted(codes, len(runs))}"
    commits = Counter(
        f"{run.git_commit[:12]}{' with uncommitted edits' if run.git_dirty else ''}" for run in runs if run.git_commit
    )
    if commits:
        yield f"git commit {_counted(commits, len(runs))}"


def _software(runs: Sequence[RunRecord]) -> Iterator[str]:
    for key, word in (("packages", "list of packages, digest"), ("image_sha256", "image"), ("python", "python")):
        found = Counter(str(run.facts[key]) for run in runs if run.facts.get(key) is not None)
        if found:
            yield f"{word} {_counted(found, len(runs))}"
    for key in SOFTWARE:
        found = Counter(str(run.facts[key]) for run in runs if run.facts.get(key) is not None)
        if found:
            yield f"{key} {_counted(found, len(runs))}"


def _hardware(study: _Study) -> Iterator[str]:
    for key in _HARDWARE:
        found = Counter(str(run.facts[key]) for run in study.runs if run.facts.get(key) is not None)
        if found:
            yield f"{key} {_counted(found, len(study.runs))}"
    shapes = Counter(
        f"{_nodes(run)} node{'s'[: _nodes(run) != 1]}" + (f", {gpus} GPU{'s'[: gpus != 1]}" if gpus else "")
        for run in study.runs
        if (gpus := _gpus(run)) is not None
    )
    if shapes:
        yield f"each run on {_counted(shapes, len(study.runs))}"


def _precision(cell: Cell) -> Iterator[tuple[str, str]]:
    for row in cell.rows:
        if row.n_ok:
            yield row.level, f"{_measured(row)}"


def _measured(row: Row) -> str:
    asked, effective = ", ".join(row.precision_requested), list(row.precision_effective)
    asked = "left to the program" if asked == PrecisionName.own.name else f"asked for {asked}"
    if not effective or effective == [NOT_PROVEN]:
        return f"{asked}, not measured"
    return f"{asked}, measured {', '.join(effective)}, {row.numerics}"


def _hours(hours: Hours) -> Iterator[str]:
    if not hours.n_attempts:
        return
    attempts = f"{hours.n_attempts} attempt{'s'[: hours.n_attempts != 1]} of {hours.n_runs} runs"
    yield f"{_spent(hours.node_h, hours.gpu_h)} in {attempts}"
    if hours.lost_node_h:
        yield f"of these {_spent(hours.lost_node_h, hours.lost_gpu_h)} lost: failed, cancelled or begun anew"
    else:
        yield "none of it lost"
    if hours.n_unknown:
        yield f"{hours.n_unknown} more attempts are over, and how long they ran is not recorded"
    if hours.n_running:
        yield f"{hours.n_running} more attempts are not over"


def _spent(node_h: float, gpu_h: float | None) -> str:
    return f"{node_h:.3g} node-h, " + ("GPU-h not recorded" if gpu_h is None else f"{gpu_h:.3g} GPU-h")


def _counted(found: Counter[str], n: int) -> str:
    """Return the values of *found*, with how many of *n* runs have each where it is not all."""
    parts = [value if count == n else f"{value} ({count} of {n} runs)" for value, count in found.most_common(_LISTED)]
    more = len(found) - _LISTED
    return "; ".join(parts) + (f" and {more} more" if more > 0 else "")


def _listed(values: Sequence[str]) -> str:
    more = len(values) - 2 * _LISTED
    return ", ".join(values[: 2 * _LISTED]) + (f" and {more} more" if more > 0 else "")
