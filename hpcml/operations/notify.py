"""The webhook told of ends that no agent could tell, because it was not there any more."""

from __future__ import annotations

from collections.abc import Callable

from hpcml.errors import HpcmlError
from hpcml.manifest import read_manifest
from hpcml.operations.verdicts import Verdict
from hpcml.records import RunRecord
from hpcml.rundir import RunDir
from hpcml.states import state_after


def tell_of_end(record: RunRecord, run_dir: RunDir, verdict: Verdict, *, tell: Callable[..., None]) -> None:
    """Post what the run's schedule asks for, if anything; *tell* journals whether that was possible."""
    if record.params.get("schedule.notify") in (None, "never"):
        return
    # Imported here: what speaks HTTP costs a twentieth of a second, which hardly any command needs.
    from hpcml.agent import notify  # noqa: PLC0415
    from hpcml.agent.turn import Turn  # noqa: PLC0415

    try:
        manifest = read_manifest(run_dir.manifest)
    except HpcmlError as error:
        tell("notify_failed", what=record.params.get("schedule.notify"), error=str(error))
        return
    notify.tell_of_end(
        Turn(run_dir=run_dir, source=run_dir.manifest, manifest=manifest, node=0, pack=None),
        state_after(verdict.name, verdict.details),
        reason=verdict.details.get("reason"),
        cause=verdict.details.get("cause"),
        wall_s=record.wall_s,
        tell=tell,
    )
