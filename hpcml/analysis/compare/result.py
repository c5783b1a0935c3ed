"""The result of `hpcml compare`: rows against a reference, with their uncertainty and the reasons to doubt them.

A `Comparison` has one `Cell` for each group of runs that differ only in the compared setting (the factor) and the seed.
A cell has one `Row` for each level of the factor. hpcml/analysis computes them, hpcml/report renders them; nothing here
is computed. Intervals are two-sided; the unit of all statistics is the seed. docs/statistics.md has the methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from hpcml.analysis.flags import Flag
from hpcml.errors import ComparisonError
from hpcml.model.choices import Numerics

Verdict = Literal[
    "reference",  # the row that the others are measured against
    "identical",  # every value is bit for bit the reference's: says nothing of other seeds
    "equivalent",  # shown to differ by less than the margin, either way
    "better",  # shown to be above the reference, by however little
    "non-inferior",  # shown not to be worse by the margin or more; perhaps better
    "worse by more than the margin",  # shown to be
    "worse",  # shown to be below the reference, by however little
    "inconclusive",  # the runs at hand cannot tell; never read it as "no difference"
    "unstable",  # too many of its runs, or of the reference's, were lost to their own doing: survivors prove nothing
    "unstable reference",  # as that, where it lost none itself
    "no margin",  # no margin was given, so no difference is known to matter
    "no goal",  # nothing says whether more of the metric is better, or less
    "not proven",  # precisions are compared, and that of an arm, or of its reference, was not measured
    "not as requested",  # an arm, or its reference, was measured to compute in another precision than its name says
]
Unit = Literal["seeds", "nodes", "none"]  # of an interval; none: arm and node are one, and there is no interval
NOT_PROVEN = "not proven"  # stands among the effective precisions for a run without a probe's answer
ENOUGH_NODES = 3  # from which nodes are the unit of a speed-up: fewer have no spread to speak of
NOT_AS_REQUESTED: Final = "not as requested"  # a verdict, and why a row has no speed
MIXED = "mixed"  # stands for the numerics of a row whose runs differ in it

_LISTED = 6  # values of one setting, in a line that people read


@dataclass(frozen=True, slots=True, kw_only=True)
class Percent:
    """A margin relative to the reference: ratios are tested, on logarithms."""

    value: float

    @classmethod
    def parse(cls, text: str) -> Percent:
        """Return what *text*, "10%", says; raise `ComparisonError` where it is something else."""
        try:
            return cls(value=float(text[:-1] if text.endswith("%") else ""))
        except ValueError:
            raise ComparisonError(f"margin={text}: choose a number, in the metric's unit, or per cent, 10%") from None

    def __str__(self) -> str:
        return f"{self.value:g}%"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRequest:
    """The options of ``hpcml compare``; this is the one list of them.

    An option that is None was not given: it is taken from the configuration of the runs, or defaults as the comment
    says.
    """

    by: str | None = None  # the setting whose effect is asked for, several joined by commas; None: precision
    reference: str | None = None  # the level that the others are compared with; of precision: fp32
    metric: str | None = None  # the objective that the runs were configured with
    goal: str | None = None  # max | min
    margin: float | Percent | None = None  # a difference below it does not matter; a number is in the metric's unit
    target: float | None = None  # a value of the metric: time and energy until it was reached
    allow: tuple[str, ...] = ()  # settings and facts that may differ within a table
    allow_mixed: bool = False  # whatever differs
    seed: str | None = None  # the setting that was swept for the program's seed; None: the seed of the runs

    def __post_init__(self) -> None:
        if self.seed == "seed":  # which is that of the runs
            object.__setattr__(self, "seed", None)

    @property
    def factor(self) -> str:
        """The setting that runs are compared by; precision where none was given."""
        return self.by or "precision"

    @property
    def is_insistent(self) -> bool:
        """Whether any option besides `metric` was given, so that it is an error if no comparison can be made."""
        return replace(self, metric=None) != ComparisonRequest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A two-sided confidence interval, in the unit of what it is the interval of; `confidence` is 0.90 or 0.95, say."""

    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The mean metric of a row minus that of the reference, in the metric's unit; see `Cell.scale` for another one.

    The sign does not depend on the goal: positive means larger, not better. Statistics are None where an arm has fewer
    than two seeds. `p_tost` is of two one-sided tests for equivalence (Schuirmann 1987).
    """

    value: float
    ci90: Interval | None  # two one-sided tests at 5 % and this interval say the same
    ci95: Interval | None
    p_tost: float | None  # the larger of the two one-sided p values; None without a margin
    paired: bool  # by seed, over the shared seeds; else Welch
    rho: float | None  # correlation of the pairs; None unpaired, below 3 pairs, or without any spread
    n_pairs: int = 0
    left_out: tuple[int, ...] = ()  # seeds with a value in one arm only, which a paired test does not use
    has_no_spread: bool = False  # nothing says how certain the difference is


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast the runs of a row were: medians over seeds. Only rows whose runs were all native have a `Speed`."""

    step_ms: float | None  # steady state
    step_ms_p5: float | None
    step_ms_p95: float | None
    samples_per_s: float | None  # over all devices; None where the program may ignore training.batch_size
    speedup: float | None  # reference's time per sample over this row's, or rates; geometric mean; above 1 is faster
    speedup_ci95: Interval | None
    speedup_paired: bool | None
    n: int  # seeds with a steady state, or with a rate
    wall_s: float | None  # whole runs, start-up and validation included
    step_ms_mean: float | None = None  # the mean over the same steps, recurring slow ones included
    speedup_of: Literal["medians", "means", "rates"] = "medians"  # of step times, as samples_per_s; rates: `rate_of`
    speedup_unit: Unit | None = None  # of its interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the runs of a row consumed: medians over seeds, of whole runs. Rows that are not all native have none."""

    gpu_hours: float | None  # None without a GPU
    energy_kj: float | None  # of the GPUs' boards
    energy_method: str | None
    energy_scope: str | None
    energy_per_sample_j: float | None  # over the samples that were trained on
    energy_ratio: float | None  # this row's energy per sample, or operation, over the reference's; below 1 saves
    energy_ratio_ci95: Interval | None
    co2_g: float | None  # of that energy, by the cluster profile's factor
    co2_source: str | None
    n: int  # seeds with a known energy
    energy_ratio_unit: Unit | None = None  # of its interval
    energy_per_gflop_j: float | None = None  # of a benchmark, over the operations that it did; its inverse: GFLOP/s/W


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How busy the devices were in the runs of a row: medians over seeds; None where it was not measured.

    Shares and `mfu` lie between 0 and 1, percentages between 0 and 100.
    """

    mean_power_w: float | None
    power_limit_w: float | None
    throttled_power_share: float | None
    throttled_thermal_share: float | None
    sm_mhz: float | None
    util_percent: float | None
    tensor_percent: float | None
    peak_memory_mb: float | None  # of the framework's allocator, else in use on the fullest GPU
    achieved_tflops: float | None  # of one device, in steady state
    peak_tflops: float | None  # of one device in the effective precision, dense
    peak_basis: str | None  # data sheet | uncertain | derived
    mfu: float | None  # achieved over peak
    data_share: float | None  # of a step's time, waiting for input
    communication_share: float | None
    skipped_steps: float | None  # by loss scaling
    limited_by: str | None  # in words, as far as the record can tell


@dataclass(frozen=True, slots=True, kw_only=True)
class ToTarget:
    """Time and energy until the metric first reached the target.

    Runs that never reached it are censored (they count with the time for which they were watched), never dropped.
    """

    target: float
    reached: int
    n: int
    median_s: float | None  # of those that reached it, since the run's start
    restricted_mean_s: float | None  # up to `budget_s`, which is what those that did not reach it get
    budget_s: float | None  # of the whole cell: for so long each run that completed without reaching it was watched
    median_kj: float | None  # sampled until then, of those that reached it
    saved_s: float | None = None  # the reference's restricted mean minus this row's: positive is sooner
    saved_ci95: Interval | None = None
    p_log_rank: float | None = None  # two-sided: times up to the budget do not differ; None below five seeds an arm
    unit: Unit | None = None  # of the interval of `saved_s`


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The seeds of a row that were lost to their own doing: how many, and at which rate.

    Lost to its own doing is a run that ended without a finite value, failed by its program or for want of memory, or
    has a value and a loss that was no number at the last. A seed is lost if any of its runs was. What a machine, a
    scheduler or a person ended is in `n_elsewhere` alone.
    """

    n: int
    n_ended: int  # without those that were lost elsewhere
    rate_ci90: Interval | None  # Clopper and Pearson; each end is a one-sided 95 % bound
    n_elsewhere: int
    n_diverged: int = 0  # runs that have a value, and of which a loss was no number at the last


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The runs of one level of the factor in one cell; the unit of all statistics is the seed.

    An assertion holds that only rows whose runs were all native have a `Speed`.
    """

    level: str
    numerics: str | None  # native | emulated | unproven | mixed; None: no run counts
    precision_requested: tuple[str, ...]
    precision_effective: tuple[str, ...]
    n_ok: int  # completed, with a finite metric: these count
    n_failed: int
    n_nan: int  # the metric's last value is not finite; completed, or ended by others than themselves
    n_without_metric: int  # completed, but never recorded the metric
    n_incomplete: int  # completed, but records may be missing
    n_unfinished: int
    seeds: tuple[int, ...]  # with a value of the metric
    mean: float | None
    sd: float | None
    mean_ci95: Interval | None
    difference: Difference | None  # None: the reference itself, or nothing to subtract
    verdict: Verdict
    speed: Speed | None
    flags: tuple[Flag, ...] = ()
    verdict_alone: Verdict | None = None  # if it were the only row; None: the same
    p_adjusted: float | None = None  # p_tost after Holm over all rows of the comparison
    p_claim: float | None = None  # of what the verdict claims, adjusted in the same way; None: it claims nothing
    losses: Losses | None = None
    cost: Cost | None = None
    load: Load | None = None
    to_target: ToTarget | None = None
    awaited: tuple[str, ...] = ()  # its runs and the reference's that have not ended
    unit: Literal["seeds", "runs"] = "seeds"  # what statistics rest on; runs where all repeat one seed and are timed

    @property
    def n_units(self) -> int:
        """How many seeds, or runs, have a value of the metric."""
        return len(self.seeds) if self.unit == "seeds" else self.n_ok

    @property
    def n_selected(self) -> int:
        """How many runs there are, whether or not they count."""
        left_out = self.n_failed + self.n_nan + self.n_without_metric + self.n_incomplete
        return self.n_ok + left_out + self.n_unfinished

    def __post_init__(self) -> None:
        assert self.speed is None or self.numerics == Numerics.native.name, f"{self.level}: no speed but of native runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occurrence:
    """One of the different values of a setting or fact, and where it occurs."""

    value: str
    n_runs: int
    levels: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Discrepancy:
    """A setting or a fact that differs between runs of one cell.

    ``str()`` gives one line: ``driver: 550.54 (2 runs: fp32); 535.10 (1 run: tf32)``; at most six values are listed.
    """

    key: str
    kind: Literal["setting", "fact"]
    occurrences: tuple[Occurrence, ...]

    def __str__(self) -> str:
        parts = [
            f"{o.value} ({o.n_runs} run{'s'[: o.n_runs != 1]}: {', '.join(o.levels)})"
            for o in self.occurrences[:_LISTED]
        ]
        more = len(self.occurrences) - len(parts)
        return f"{self.key}: {'; '.join([*parts, *([f'and {more} more values'] if more else [])])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A run that was selected but does not count, and the reason."""

    uid: str
    level: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Runs that may be compared with each other: equal in everything but the factor and the seed."""

    where: Mapping[str, str]  # by config group, and any setting that made cells; "not set" where it is not known
    device: str | None  # None: not recorded, or not alike in all runs
    batch_size: int | None  # global; None: the factor, not alike in all runs, or not known of a user's own program
    reference: str
    margin: float | None
    margin_source: Literal["config", "command line"] | None
    steady_from_step: int | None
    steady_to_step: int | None
    rows: tuple[Row, ...]  # the reference first, then in natural order
    flags: tuple[Flag, ...] = ()  # of the whole cell
    confounders: tuple[Discrepancy, ...] = ()  # only where mixing was allowed: a reason to doubt every number above
    notes: tuple[Discrepancy, ...] = ()  # may differ, worth knowing
    excluded: tuple[Excluded, ...] = ()
    scale: Literal["linear", "log", "percent"] = (
        "linear"  # of all tests; percent: on logarithms, told in % of the reference
    )
    target_source: Literal["config", "command line"] | None = None  # None: no row has a `to_target`


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The whole result of one `hpcml compare`: the effect of one setting, cell by cell."""

    by: str  # as asked: precision, training.batch_size
    metric: str  # a run's value is the last one it recorded
    goal: Literal["max", "min"] | None  # None: nothing tells which way is better
    goal_source: Literal["config", "command line", "metric name"] | None
    n_runs: int
    n_comparisons: int  # rows against a reference, over all cells
    cells: tuple[Cell, ...] = field(default_factory=tuple)
    n_tests: int = 0  # of them, those with a p value: Holm's m
    seed: str | None = None  # the setting that stands for the seed of the runs; None: their own
    excluded: tuple[Excluded, ...] = ()  # runs of cells without the setting or the metric, often of another program

    @property
    def way(self) -> str:
        """Which way the metric is better, in words."""
        if self.goal is None:
            return "nothing tells whether higher is better: say --goal max or min"
        return f"{'higher' if self.goal == 'max' else 'lower'} is better"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The mean curve over several seeds with its confidence interval, over the range where all seeds have values.

    `x`, `mean`, `low` and `high` have the same length.
    """

    x: tuple[float, ...]
    mean: tuple[float | None, ...]  # None where one of the curves is not finite
    low: tuple[float | None, ...]  # None with a single seed, too
    high: tuple[float | None, ...]
    confidence: float
    seeds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The runs of one level of the factor, in one group."""

    name: str
    uids: tuple[str, ...]
    counted: tuple[str, ...]  # those of them that the numbers are made of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportGroup:
    """Runs that are equal in model, data, strategy and so on: those that form one cell of a comparison."""

    where: Mapping[str, str]
    levels: tuple[Level, ...]  # in natural order
