"""The section of `hpcml report` with the hours that the runs held nodes and GPUs, lost attempts included."""

from __future__ import annotations

from collections.abc import Iterator

from hpcml.model.hours import Hours
from hpcml.report.document import Remarks, Section


def hours_section(compared: Hours, of_experiments: Hours) -> Section:
    """Return the section: the hours of the compared runs, and of all runs of their experiments."""
    lines = [f"the compared runs: {line}" for line in _lines(compared)]
    if of_experiments.n_runs > compared.n_runs:
        lines += [f"all runs of their experiments: {line}" for line in _lines(of_experiments)]
    return Section(heading="Hours", parts=[Remarks(lines=lines)])


def _lines(hours: Hours) -> Iterator[str]:
    attempts = f"{hours.n_attempts} attempt{'s'[: hours.n_attempts != 1]} of {hours.n_runs} runs"
    lost = _spent(hours.lost_node_h, hours.lost_gpu_h) if hours.lost_node_h else "none of it"
    yield f"{_spent(hours.node_h, hours.gpu_h)} in {attempts}; {lost} lost: failed, cancelled or begun anew"
    if hours.n_unknown:
        yield f"{hours.n_unknown} more attempts are over, and how long they ran is not recorded"
    if hours.n_running:
        yield f"{hours.n_running} more attempts are not over"


def _spent(node_h: float, gpu_h: float | None) -> str:
    return f"{node_h:.3g} node-h, " + ("GPU-h not recorded" if gpu_h is None else f"{gpu_h:.3g} GPU-h")
