"""Notifies the user's webhook of the end of a run, or of the last run of a submission (`schedule.notify`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hpcml.agent import webhook
from hpcml.agent.assignment import Turn
from hpcml.errors import HpcmlError
from hpcml.model.run import Notify
from hpcml.model.state import State
from hpcml.runs.atomic import create_text, write_text
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import Manifest
from hpcml.runs.private import make_folder

_RUNS = "runs"  # HOME/runs/EXPERIMENT/UID


def tell_of_end(
    turn: Turn, state: State, *, reason: str | None, cause: str | None, wall_s: float | None, tell: Callable[..., None]
) -> None:
    """Post the message that the run's schedule asks for; *tell* journals whether that worked.

    Whatever goes wrong with it (file, network, server) is only journalled, as the event "notify_failed".
    """
    schedule = turn.run.schedule
    if schedule.notify is Notify.never or schedule.webhook_file is None:
        return
    what = schedule.notify.name
    try:
        message = (
            _sweep_message(turn, state)
            if schedule.notify is Notify.sweep
            else _run_message(turn.manifest, state, reason=reason, cause=cause, wall_s=wall_s)
        )
        if message is None:
            return
        webhook.post(Path(schedule.webhook_file).expanduser(), message)
    except (HpcmlError, OSError, RuntimeError) as error:  # the last: `~` of a user without a home
        tell("notify_failed", what=what, error=str(error))
    else:
        tell("notified", what=what)


def _run_message(
    manifest: Manifest, state: State, *, reason: str | None, cause: str | None, wall_s: float | None
) -> dict[str, object]:
    run = manifest.run
    return webhook.run_message(
        uid=manifest.uid,
        name=run.name or run.model.name,
        experiment=run.experiment,
        cluster=run.cluster.name,
        state=state,
        reason=reason,
        cause=cause,
        wall_s=wall_s,
    )


def _sweep_message(turn: Turn, state: State) -> dict[str, object] | None:
    """Record the end, and return the message if it is the last of its submission; else None."""
    origin = turn.manifest.provenance
    folder = folder_of_ends(turn.run_dir, turn.manifest)
    if folder is None or origin.submission is None or origin.submission_size is None:
        return None
    counts = record_end(folder, turn.uid, state, size=origin.submission_size)
    if counts is None:
        return None
    return webhook.sweep_message(submission=origin.submission, experiment=turn.run.experiment, counts=counts)


def folder_of_ends(run_dir: RunDir, manifest: Manifest) -> Path | None:
    """Return the folder that counts the ended runs of the run's submission.

    None where the run does not lie in a home's ``runs`` folder, or was not submitted by `hpcml run`.
    """
    parents = run_dir.path.parents
    if len(parents) < 3 or parents[1].name != _RUNS or manifest.provenance.submission is None:
        return None
    return parents[2] / "submissions" / "ended" / manifest.provenance.submission


def record_end(folder: Path, uid: str, state: State, *, size: int) -> Counter[str] | None:
    """Note the end of a run in *folder*; return the counts by state if it completes those of *size* runs, else None.

    Each end is a file of its own: of lines that several nodes append to one, a network file system loses some. Whoever
    is the first to see all of them sends the message; a run that ends again later does not.
    """
    make_folder(folder, parents=True)
    write_text(folder / uid, state.value)
    ended = [path for path in folder.iterdir() if not path.name.startswith(".")]
    if len(ended) < size:
        return None
    try:
        create_text(folder / ".told", "")
    except FileExistsError:
        return None
    return Counter(path.read_text(encoding="ascii", errors="replace") for path in ended)
