"""From what a program was seen to multiply to one word: its effective precision. Pure; hpcml's store folds by it too.

An observer in the program says hello (event ``precision_observer``), and reports windows of a step or a few, each as
one event ``precision_observed`` (docs/journal.md):

    {"framework": "torch", "window": 0, "step": 2,
     "rows": [{"format": "bf16", "phase": "forward", "layer": "conv1", "flops": 1.2e9, "emulated": false}],
     "unknown": [{"what": "flash_attn::fwd", "flops": 2.5e8}],
     "parameters": {"float32": 1199882}, "switches": {...}, "autocast": {...}, "evidence": [...], "seconds": 0.01}

``emulated`` (false) and ``parameters`` (elements by dtype; absent: not known) may be left out. What is unknown has its
FLOPs, or null. ``format`` is a product of `PRECISIONS`, `TF32_ALLOWED`, or another word.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from hpcml_client.precisions import PRECISIONS

UNKNOWN = "unknown"  # it was observed, and what it computed in cannot be said
NOT_OBSERVED = "not observed"  # it was to be observed, and no observer has said hello
COMPILED = "compiled"  # an operation that is unknown: code of torch.compile, which no observer watches
NOT_USED = "not used"  # the arm's format has no share; what was used follows in parentheses
OBSERVED, PROBED = "observed", "probed"  # where an effective precision is known from
# A format: float32 on a GPU whose library had leave to compute in TF32, where no probe has shown that it does
TF32_ALLOWED = "tf32 allowed"
JUDGED = ("forward", "backward")  # products of optimizers (Muon, Shampoo) are shown, and are no arm's
_PURE = 0.99  # of the FLOPs of a phase of each window
_MANY = 0.9  # of the parameters: the others are those of norms
_SHOWN = 0.5  # of the FLOPs for which TF32 was allowed: where so many were in TF32, the others are taken for it too
_LONGEST_LAYER = 60  # characters
_NAMED_LAYERS = 2


class Row(NamedTuple):
    """The products of one format in one phase and layer of a window; `layer` is None where it is not known."""

    format: str
    phase: str  # forward, backward, optimizer
    layer: str | None
    flops: float
    emulated: bool = False


class Window(NamedTuple):
    """What was multiplied in a few steps of a program; `unknown_share` is inf where nobody knows how much that was."""

    step: int  # the last one in it
    rows: tuple[Row, ...]
    unknown_share: float = 0.0  # of the window's FLOPs
    unknown: tuple[str, ...] = ()  # what that was
    parameters: Mapping[str, float] | None = None  # elements by dtype

    @property
    def judged(self) -> list[Row]:
        """The rows of forward and backward passes."""
        return [row for row in self.rows if row.phase in JUDGED]


class Share(NamedTuple):
    """The part of all FLOPs that were seen, from 0 to 1, in one format, phase and layer."""

    format: str
    phase: str
    layer: str | None
    emulated: bool
    share: float


def read_window(details: Mapping[str, Any]) -> Window | None:
    """Return the window of an event ``precision_observed``, or None where the event is none."""
    step, rows, unknown = details.get("step"), details.get("rows"), details.get("unknown") or []
    if not isinstance(step, int) or not isinstance(rows, list) or not isinstance(unknown, list):
        return None
    found = [row for row in map(_read_row, rows) if row is not None]
    if len(found) < len(rows) or not all(isinstance(one, dict) for one in unknown):
        return None
    parameters = details.get("parameters")
    counts = parameters.items() if isinstance(parameters, dict) else ()
    return Window(
        step=step,
        rows=tuple(found),
        unknown_share=_unknown_share(math.fsum(row.flops for row in found), unknown),
        unknown=tuple(str(one.get("what")) for one in unknown),
        parameters={str(name): number for name, count in counts if (number := _number(count)) is not None} or None,
    )


def effective(
    windows: Sequence[Window],
    *,
    requested: str,
    probed: str | None,
    parameters: str | None,
    has_observer: bool,
    is_expected: bool,
) -> tuple[str | None, str | None]:
    """Return the effective precision of a run, None where nothing tells it, and whether `OBSERVED` or `PROBED`.

    *probed* is what a probe beside the program measured, with *parameters* of that dtype; *has_observer* says whether
    one said hello, *is_expected* whether one was to. A program that was observed is what it did; where an observer saw
    no step of it, it is `UNKNOWN`, whatever the probe says.
    """
    if windows:
        return name_observed(windows, requested, parameters), OBSERVED
    if has_observer:
        return UNKNOWN, OBSERVED
    if probed is not None:
        return probed, PROBED
    return (NOT_OBSERVED if is_expected else None), None


def name_observed(windows: Sequence[Window], requested: str, parameters: str | None = None) -> str:
    """Return the effective precision of the *windows* of a run that asked for *requested*.

    It is the name of a precision where one format has 99 % of the FLOPs in the forward and in the backward pass of
    every window, and the parameters are of its type; ``mixed(87 % bf16, 13 % fp32: classifier)`` for several;
    ``not used(...)`` where the format that was asked for has no part; `UNKNOWN` where 1 % or more of a window is;
    ``not observed: compiled`` where the program is.
    *parameters* is their dtype where windows tell none. TF32 is a permission: where a probe shows it of half of the
    products, those that were allowed it, too, are a part of it; where of fewer, nobody knows that it was used.

    >>> row = Row("bf16", "forward", "fc", 2.0)
    >>> name_observed([Window(2, (row,))], "amp_bf16", "float32")
    'amp_bf16'
    >>> name_observed([Window(2, (row, row._replace(format="fp32")))], "amp_bf16", "float32")
    'mixed(50 % bf16, 50 % fp32: fc)'
    """
    if any(COMPILED in window.unknown for window in windows):
        return f"{NOT_OBSERVED}: {COMPILED}"
    judged = [row for window in windows for row in window.judged]
    total = math.fsum(row.flops for row in judged)
    if total <= 0 or any(window.unknown_share >= 1 - _PURE for window in windows):
        return UNKNOWN
    wanted = PRECISIONS[requested].product if requested in PRECISIONS else None
    allowed = [_as_allowed(window) for window in windows]
    if _only_format(allowed) == "tf32":
        if _flops(judged, format="tf32") >= _SHOWN * total:
            windows, judged = allowed, [row for window in allowed for row in window.judged]
        elif wanted == "tf32":
            return UNKNOWN
    form = _only_format(windows)
    if form is not None:
        return _name_of_one(form, _dtype(windows, parameters), requested)
    formats = sorted({row.format for row in judged}, key=lambda one: (-_flops(judged, format=one), one))
    may_be = (wanted, TF32_ALLOWED) if wanted in ("fp32", "tf32") else (wanted,)
    is_used = wanted is None or math.fsum(_flops(judged, format=one) for one in may_be) / total > 1 - _PURE
    if not is_used:
        formats = [one for one in formats if one != wanted]
    parts = [_part(one, windows, judged, rank=rank) for rank, one in enumerate(formats)]
    return f"{'mixed' if is_used else NOT_USED}({', '.join(part for part in parts if part)})"


def shares(windows: Iterable[Window]) -> list[Share]:
    """Return the shares of all formats, phases and layers in the FLOPs of all *windows*, largest first."""
    flops: dict[tuple[str, str, str, bool], float] = {}
    for window in windows:
        for row in window.rows:
            key = (row.format, row.phase, row.layer or "", row.emulated)
            flops[key] = flops.get(key, 0.0) + row.flops
    total = math.fsum(flops.values())
    found = [
        Share(form, phase, layer or None, emulated, count / total)
        for (form, phase, layer, emulated), count in flops.items()
        if count > 0
    ]
    return sorted(found, key=lambda one: (-one.share, one[:2], one.layer or ""))


def _read_row(row: object) -> Row | None:
    if not isinstance(row, dict) or not isinstance(row.get("format"), str) or not isinstance(row.get("phase"), str):
        return None
    flops, layer = _number(row.get("flops")), row.get("layer")
    if flops is None or not (0 <= flops < math.inf):
        return None
    named = layer[:_LONGEST_LAYER] if isinstance(layer, str) and layer else None
    return Row(row["format"], row["phase"], named, flops, row.get("emulated") is True)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
        return None
    return float(value)


def _unknown_share(known: float, unknown: Sequence[Mapping[str, Any]]) -> float:
    """Return the part of the window that is unknown, beside *known* FLOPs."""
    flops = 0.0
    for one in unknown:
        if (count := _number(one.get("flops"))) is None:
            return math.inf
        flops += count
    return flops / (known + flops) if flops > 0 else 0.0


def _flops(rows: Iterable[Row], **fields: object) -> float:
    return math.fsum(row.flops for row in rows if all(getattr(row, key) == value for key, value in fields.items()))


def _as_allowed(window: Window) -> Window:
    """Return *window* as if all that was allowed to be TF32 had been."""
    rows = (row._replace(format="tf32") if row.format == TF32_ALLOWED else row for row in window.rows)
    return window._replace(rows=tuple(rows))


def _only_format(windows: Sequence[Window]) -> str | None:
    """Return the format that has nearly all FLOPs of each phase in each window, or None."""
    found = set()
    for window in windows:
        for phase in JUDGED:
            rows = [row for row in window.rows if row.phase == phase and row.flops > 0]
            if not rows:
                continue
            largest = max(rows, key=lambda row: _flops(rows, format=row.format)).format
            if _flops(rows, format=largest) < _PURE * _flops(rows):
                return None
            found.add(largest)
    return found.pop() if len(found) == 1 else None


def _dtype(windows: Sequence[Window], otherwise: str | None) -> str | None:
    """Return the dtype of nearly all parameters, ``mixed`` where there are several."""
    counts: dict[str, float] = {}
    for window in windows:
        for name, count in (window.parameters or {}).items():
            counts[name] = counts.get(name, 0.0) + count
    if not counts:
        return otherwise
    name = max(counts, key=lambda one: counts[one])
    return name if counts[name] >= _MANY * math.fsum(counts.values()) else "mixed"


def _name_of_one(form: str, dtype: str | None, requested: str) -> str:
    """Return the precision whose products are of the format *form*, where parameters are of *dtype*."""
    if form == TF32_ALLOWED:
        return form
    fitting = [name for name, row in PRECISIONS.items() if row.product == form and dtype in (None, row.parameters)]
    if requested in fitting:
        return requested
    name = fitting[0] if fitting else f"{form}, parameters {dtype}"
    if requested in PRECISIONS and PRECISIONS[requested].product != form:
        return f"{NOT_USED}({name})"
    return name if fitting else f"mixed({name})"


def _part(form: str, windows: Sequence[Window], judged: Sequence[Row], *, rank: int) -> str | None:
    """Return the share of *form* in words, and where it is; None where it has hardly any.

    The two largest (*rank* 0 and 1) are always told: little of all may be much of a backward pass or of a step.
    """
    share = _flops(judged, format=form) / _flops(judged)
    if share <= 1 - _PURE and rank > 1:
        return None
    place = _phase_of(form, judged) or _time_of(form, windows)
    if place is None and rank > 0:
        place = _layers_of(form, judged)
    much = "under 1" if share <= 1 - _PURE else "over 99" if share > _PURE else f"{100 * share:.0f}"
    return f"{much} % {form}{f': {place}' if place else ''}"


def _phase_of(form: str, judged: Sequence[Row]) -> str | None:
    """Return the phase that *form* has to itself, and is in alone."""
    for phase in JUDGED:
        mine = _flops(judged, format=form, phase=phase)
        if mine >= _PURE * _flops(judged, format=form) and mine >= _PURE * _flops(judged, phase=phase):
            return phase
    return None


def _time_of(form: str, windows: Sequence[Window]) -> str | None:
    """Return until, or from when all was of *form*, where that changed."""
    flops: dict[int, tuple[float, float]] = {}  # by step: of the format, of all
    for window in windows:
        mine, all_of_it = flops.get(window.step, (0.0, 0.0))
        judged = window.judged
        flops[window.step] = mine + _flops(judged, format=form), all_of_it + _flops(judged)
    steps = sorted(step for step, (_, all_of_it) in flops.items() if all_of_it > 0)
    parts = {step: flops[step][0] / flops[step][1] for step in steps}
    there = [step for step in steps if parts[step] > 1 - _PURE]
    if len(there) in (0, len(steps)) or any(parts[step] < _PURE for step in there):
        return None
    if there != [step for step in steps if there[0] <= step <= there[-1]]:
        return None
    if there[0] == steps[0]:
        return f"until step {there[-1]}"
    return f"from step {there[0]}" if there[-1] == steps[-1] else f"steps {there[0]} to {there[-1]}"


def _layers_of(form: str, judged: Sequence[Row]) -> str | None:
    flops: dict[str, float] = {}
    for row in judged:
        if row.format == form and row.layer is not None:
            flops[row.layer] = flops.get(row.layer, 0.0) + row.flops
    names = sorted(flops, key=lambda layer: (-flops[layer], layer))
    more = len(names) - _NAMED_LAYERS
    return ", ".join(names[:_NAMED_LAYERS]) + (f" and {more} more" if more > 0 else "") or None
