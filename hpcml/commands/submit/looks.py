"""``schedule.until=verdict``: seeds in rounds, until looks that were planned before the first run decide.

`begin` writes the plan down, with the run directories that all seeds would have, and submits the seeds of the first
look. `go_on` takes each look whose runs have ended, and submits the seeds of the next for what is not decided. Both are
called as often as one likes, by ``hpcml run`` with the same words and by ``hpcml sync``, and killed at any point: the
ids of all runs stand in the plan, so that none can be submitted twice, and a look that was taken is never taken again.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hpcml.analysis.compare.arms import is_own_doing
from hpcml.analysis.compare.comparison import take_look
from hpcml.codec import decode, encode
from hpcml.commands.collect import collect, opened
from hpcml.commands.compare import with_packages
from hpcml.commands.image_uses import claim_all
from hpcml.commands.retry import is_going_on
from hpcml.commands.submit import code_store, packing, provenance, recover
from hpcml.commands.submit.backends import Backends
from hpcml.commands.submit.code import KeptCode
from hpcml.commands.submit.exclusive import deciding_alone
from hpcml.commands.submit.launch import Launched, Prepared, prepare, require_schedulers, send
from hpcml.commands.submit.look_plan import draft_plan, in_words, refuse_another
from hpcml.commands.submit.planned import Planned
from hpcml.errors import ComparisonError, ConfigError, HpcmlError
from hpcml.model.looks import Look, LookPlan, PlannedStudy
from hpcml.model.state import State
from hpcml.moments import local_time
from hpcml.paths import Places
from hpcml.runs import looks
from hpcml.runs.layout import RunDir, new_submission_id
from hpcml.runs.looks import LookFiles, files_of
from hpcml.runs.manifest import Manifest
from hpcml.runs.private import check
from hpcml.schedulers.contract import Job
from hpcml.store.database import Database
from hpcml.store.query import find_runs

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What was done about one planned experiment: lines for the user, and the runs that were submitted."""

    lines: Sequence[str]
    launched: Sequence[Launched] = ()


def begin(
    planned: Sequence[Planned],
    places: Places,
    backends: Backends,
    command_line: Sequence[str],
    tell: Callable[[str], None],
) -> list[Launched]:
    """Plan looks at *planned* and submit the seeds of the first, or go on with that plan; return what was submitted.

    Raises `ConfigError` where the experiment has another plan, or runs without one.
    """
    plan, members = draft_plan(planned)
    files = files_of(places.home, plan.experiment)
    with deciding_alone(places, tell):
        _finish_interrupted(places, backends)
        with opened(places) as store:
            collect(store, places)
            if files.is_planned and _has_begun(files, places):
                refuse_another(looks.read_study(files, top=places.home).plan, plan)
                step = _step(store, files, places, backends)
                for line in step.lines or [standing_of(looks.read_study(files, top=places.home))]:
                    tell(line)
                return list(step.launched)
            if runs := find_runs(store, experiment=plan.experiment):
                raise ConfigError(
                    f"experiment={plan.experiment} has {len(runs)} runs that nobody planned looks at: "
                    "schedule.until=verdict stands before the first, so take another experiment=NAME"
                )
        require_schedulers(planned)
        if files.is_planned:
            _forget(files)
        for line in in_words(plan):
            tell(line)
        _write(files, plan, members, places, command_line)
        return _submit(files, looks.read_study(files, top=places.home), places, backends)


def go_on(places: Places, backends: Backends, store: Database, tell: Callable[[str], None]) -> list[Step]:
    """Take every look whose runs have ended, and submit the next seeds; return what was done, by experiment.

    *store* is up to date. What cannot be done now is among the lines.
    """
    planned = sorted(path.parent for path in places.looks.glob("*/plan.json"))
    steps: list[Step] = []
    for files in map(LookFiles, planned):
        try:
            if not looks.read_study(files, top=places.home).open_rows:
                continue
            with deciding_alone(places, tell):
                if _has_begun(files, places):
                    steps.append(_step(store, files, places, backends))
                else:
                    _forget(files)
                    steps.append(Step(lines=[f"the plan of {files.folder.name} never began and was removed"]))
        except HpcmlError as error:
            steps.append(Step(lines=[f"{files.folder.name} cannot go on: {error}"]))
    return steps


def go_on_alone(places: Places, backends: Backends, experiment: str, tell: Callable[[str], None]) -> Step:
    """Do as `go_on` for one planned experiment; the store is brought up to date before."""
    with deciding_alone(places, tell), opened(places) as store:
        collect(store, places)
        return _step(store, files_of(places.home, experiment), places, backends)


def is_open(places: Places, experiment: str) -> bool:
    """Tell whether *experiment* has a plan that is not decided."""
    files = files_of(places.home, experiment)
    return files.is_planned and bool(looks.read_study(files, top=places.home).open_rows)


def _step(store: Database, files: LookFiles, places: Places, backends: Backends) -> Step:
    """Take the looks that can be taken, then submit the next seeds."""
    study = looks.read_study(files, top=places.home)
    lines: list[str] = []
    while study.open_rows and _is_submitted(files, study, places):
        found = _taken(store, study)
        if isinstance(found, str):
            return Step(lines=[*lines, found] if found else lines)
        looks.create(files.look(found.number), found)
        study = replace(study, looks=(*study.looks, found))
        lines.append(_told(study, found))
    if not study.open_rows:
        return Step(lines=lines)
    launched = _submit(files, study, places, backends)
    lines += (
        [f"{study.plan.experiment}: {len(launched)} runs submitted for look {len(study.looks) + 1}"] if launched else []
    )
    return Step(lines=lines, launched=launched)


def _taken(store: Database, study: PlannedStudy) -> Look | str:
    """Return the next look, or in a line what it waits for, "" while its runs simply go on."""
    plan, number = study.plan, len(study.looks) + 1
    wanted = {uid for arm in study.open_arms for uid in arm.uids[: plan.sizes[number - 1]]}
    runs = [run for run in find_runs(store, experiment=plan.experiment) if run.uid in wanted]
    if any(not run.state.is_final or not run.is_settled or is_going_on(store, run, time.time()) for run in runs):
        return ""
    about = f"{plan.experiment}: look {number} of {len(plan.sizes)}"
    held = [run.uid for run in runs if run.state is not State.COMPLETED and not is_own_doing(run)]
    if held:
        named = f"{', '.join(held[:_SHOWN])}{', ...' if len(held) > _SHOWN else ''}"
        return f"{about} waits for {len(held)} runs that the cluster or a person ended: hpcml retry {named} (or rm)"
    try:
        arms = take_look(with_packages(runs), study, number)
    except ComparisonError as error:
        return f"{about} cannot be taken: {' '.join(str(error).split())}"
    return Look(number=number, taken_at=local_time().isoformat(timespec="seconds"), arms=arms)


def _told(study: PlannedStudy, look: Look) -> str:
    plan = study.plan
    said = "; ".join(f"{arm.level} {arm.verdict}, {arm.stop or 'goes on'}" for arm in look.arms)
    return (
        f"{plan.experiment}: look {look.number} of {len(plan.sizes)} with {plan.sizes[look.number - 1]} seeds: {said}"
    )


def standing_of(study: PlannedStudy) -> str:
    """Return in a line how far a plan is."""
    plan, taken = study.plan, len(study.looks)
    if study.open_rows:
        n = plan.sizes[taken]
        return f"{plan.experiment}: look {taken + 1} of {len(plan.sizes)}, at {n} seeds, waits for runs: hpcml status"
    last = [seen for arm in plan.rows if (seen := study.last_of(arm.cell, arm.level)) is not None]
    said = "; ".join(f"{arm.level} {arm.verdict}, {arm.stop} at look {number}" for number, arm in last)
    return f"{plan.experiment} is decided: {said}"


def _submit(files: LookFiles, study: PlannedStudy, places: Places, backends: Backends) -> list[Launched]:
    """Submit the seeds of the next look for what is not decided, unless that was done."""
    if _is_submitted(files, study, places):
        return []
    plan, number = study.plan, len(study.looks) + 1
    start, end = plan.sizes[number - 2] if number > 1 else 0, plan.sizes[number - 1]
    wanted = [uid for arm in study.open_arms for uid in arm.uids[start:end]]
    now = local_time()
    submission = new_submission_id(now)
    points = _points(files, wanted, places, is_first=number == 1)
    if not files.round(number).exists():
        looks.create(files.round(number), {"submission": submission, "at": now.isoformat(timespec="seconds")})
    by_spec = {prepared.job.manifest.spec_hash: prepared for prepared in points}
    packs = packing.packs_of(sorted((one.item for one in points), key=lambda item: item.run.seed))
    outgoing = [
        [_addressed(by_spec[item.run.spec_hash], item, submission, len(points), now) for item in pack] for pack in packs
    ]
    claim_all([one.item.image for one in points if one.item.image is not None], places)
    launched = send(outgoing, submission, places, backends)
    looks.create(files.submitted(number), {})
    return launched


def _is_submitted(files: LookFiles, study: PlannedStudy, places: Places) -> bool:
    """Tell whether the seeds of the next look were submitted, and write that down where it was not."""
    number = len(study.looks) + 1
    if files.submitted(number).exists():
        return True
    start = study.plan.sizes[number - 2] if number > 1 else 0
    wanted = [uid for arm in study.open_arms for uid in arm.uids[start : study.plan.sizes[number - 1]]]
    if not files.round(number).exists() or not any(_dir_of(study.plan, uid, places).path.exists() for uid in wanted):
        return False
    looks.create(files.submitted(number), {})  # it was killed in between
    return True


def _has_begun(files: LookFiles, places: Places) -> bool:
    study = looks.read_study(files, top=places.home)
    return bool(study.looks) or _is_submitted(files, study, places)


def _forget(files: LookFiles) -> None:
    """Remove a plan of which nothing was ever submitted; looks that nobody planned stay."""
    files.plan.unlink(missing_ok=True)  # first: what is left is no plan
    for path in (files.points, files.round(1), *files.folder.glob("*.diff")):
        path.unlink(missing_ok=True)


def _finish_interrupted(places: Places, backends: Backends) -> None:
    if recover.interrupted(places):
        waiting = recover.recover(places, backends).waiting
        if waiting:
            raise ConfigError(waiting[0])


# The runs of all seeds, written down before the first.


def _write(
    files: LookFiles,
    plan: LookPlan,
    members: Sequence[Sequence[Planned]],
    places: Places,
    command_line: Sequence[str],
) -> None:
    """Write the plan, and the manifests of all its runs with the copies of code that they start in."""
    now = local_time()
    in_order = sorted((item for arm in members for item in arm), key=lambda item: plan.seeds.index(item.run.seed))
    prepared = prepare(in_order, places, command_line, "", now)
    uids = {id(item): one.job.run_dir.uid for item, one in zip(in_order, prepared, strict=True)}
    diffs = {hashlib.sha256(one.code.diff).hexdigest()[:16]: one.code.diff for one in prepared if one.code.diff}
    for digest, diff in diffs.items():
        looks.create_bytes(files.diff(digest), diff)
    points = {one.job.run_dir.uid: _encoded(one) for one in prepared}
    if files.points.exists():
        files.points.unlink()  # of a plan that was never finished
    looks.create(files.points, points)
    arms = [replace(arm, uids=[uids[id(item)] for item in of]) for arm, of in zip(plan.arms, members, strict=True)]
    looks.create(files.plan, replace(plan, arms=arms))


def _encoded(one: Prepared) -> dict[str, Any]:
    return {
        "manifest": encode(one.job.manifest),
        "overrides": list(one.item.overrides),
        "user_config": list(one.item.user_config),
        "code": None if one.kept.code is None else str(one.kept.code),
        "packages": [str(package) for package in one.kept.packages],
        "diff": hashlib.sha256(one.code.diff).hexdigest()[:16] if one.code.diff else None,
    }


def _points(files: LookFiles, uids: Sequence[str], places: Places, *, is_first: bool) -> list[Prepared]:
    """Return the runs *uids* as they were planned; what the first waited for is over when later ones are submitted."""
    points = looks.read_json(files.points, top=places.home)
    found = [_decoded(points[uid], files, places) for uid in uids]
    return found if is_first else [_unbound(one) for one in found]


def _decoded(point: Mapping[str, Any], files: LookFiles, places: Places) -> Prepared:
    manifest: Manifest = decode(Manifest, point["manifest"])
    code = None if point["code"] is None else Path(point["code"])
    packages = tuple(map(Path, point["packages"]))
    for kept in (*packages, *([] if code is None else [code])):
        top = next((folder for folder in (kept, *kept.parents) if folder.parent == places.code), None)
        if top is not None and not code_store.is_there(top):
            raise ConfigError(
                f"the copy of the code {top} is gone: this plan cannot go on, take another experiment=NAME"
            )
    diff = b"" if point["diff"] is None else _own_bytes(files.diff(point["diff"]), places)
    item = Planned(
        run=manifest.run,
        plan=manifest.plan,
        overrides=tuple(point["overrides"]),
        user_config=tuple(point["user_config"]),
        image=manifest.plan.image,
    )
    return Prepared(
        item=item,
        job=Job(run_dir=RunDir(places.runs / manifest.run.experiment / manifest.uid), manifest=manifest),
        kept=KeptCode(plan=manifest.plan, code=code, packages=packages),
        code=provenance.Code(commit=manifest.provenance.git_commit, dirty=manifest.provenance.git_dirty, diff=diff),
    )


def _own_bytes(path: Path, places: Places) -> bytes:
    check(path, top=places.home)
    return path.read_bytes()


def _unbound(one: Prepared) -> Prepared:
    if one.item.run.resources.dependency is None:
        return one
    run = replace(one.item.run, resources=replace(one.item.run.resources, dependency=None))
    plan = replace(one.item.plan, dependency=None)
    return replace(
        one,
        item=replace(one.item, run=run, plan=plan),
        job=replace(one.job, manifest=replace(one.job.manifest, run=run, plan=plan)),
    )


def _addressed(one: Prepared, item: Planned, submission: str, size: int, now: datetime) -> Prepared:
    """Return *one* as it is submitted now, with the times that its pack gave *item*."""
    origin = replace(
        one.job.manifest.provenance,
        submission=submission,
        submission_size=size,
        submitted_at=now.isoformat(timespec="seconds"),
    )
    manifest = replace(one.job.manifest, run=item.run, plan=item.plan, provenance=origin)
    return replace(one, item=item, job=replace(one.job, manifest=manifest))


def _dir_of(plan: LookPlan, uid: str, places: Places) -> RunDir:
    return RunDir(places.runs / plan.experiment / uid)
