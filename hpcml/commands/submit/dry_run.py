"""The preview of ``hpcml run --dry-run``: what would be submitted, with every check made and nothing written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.submit import dependencies, images, launch, preflight, rehearse, snapshot
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.planned import Planned
from hpcml.errors import NotPrivateError
from hpcml.model.run import Run
from hpcml.paths import Places
from hpcml.runs.plan import Plan
from hpcml.runs.private import why_shared
from hpcml.schedulers.contract import Preview


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmissionPreview:
    """What `hpcml run` would do: each run with its plan and overrides, and each call of a scheduler.

    `runs` and `submissions` are in the order of the submission.
    """

    runs: Sequence[tuple[Run, Plan, tuple[str, ...]]]
    submissions: Sequence[Preview]
    sources: Sequence[str]  # a line for each place that code, and each image, would come from
    warnings: Sequence[str]


def preview_submission(
    planned: Sequence[Planned], places: Places, backends: Backends, *, environ: Mapping[str, str], project: Path
) -> SubmissionPreview:
    """Return what a submission of *planned* would be; nothing is written, built or submitted.

    Raises the `ConfigError` or `ImageError` that the submission would raise. *environ* and *project* are as for
    `run.submit_points`: they say where images and their definitions are.
    """
    if places.home.is_dir() and (shared := why_shared(places.home)):
        raise NotPrivateError(shared)
    notes: list[str] = []
    if any(item.run.resources.dependency is not None for item in planned):
        planned, notes = dependencies.resolve_all(planned, places)
    lines: list[str] = []
    if any(item.wants_image for item in planned):
        planned, lines = images.foreseen(planned, environ, project)
    submissions = launch.preview(planned, places, backends)
    said = rehearse.rehearse(planned, places, backends)
    refused = [*preflight.refusals(planned), *said.refusals]
    return SubmissionPreview(
        runs=[(item.run, launch.plan_shown(item, places), item.overrides) for item in planned],
        submissions=submissions,
        sources=[*snapshot.foreseen(planned, places), *lines, *said.notes],
        warnings=[*notes, *refused, *said.warnings, *preflight.all_warnings(planned, places, backends.machine())],
    )
