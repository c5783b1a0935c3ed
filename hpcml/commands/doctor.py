"""Checks of this machine and of a cluster's profile, each ok, warned of or failed, for ``hpcml doctor``."""

from __future__ import annotations

import os
import platform
import stat
from collections.abc import Collection, Iterator
from importlib import metadata
from pathlib import Path

from hpcml import plugins
from hpcml.agent.telemetry.others import NodeSampler
from hpcml.commands.collect import opened
from hpcml.commands.export import FORMS
from hpcml.commands.submit.advice import warnings
from hpcml.commands.submit.backends import Backends, Machine
from hpcml.commands.submit.check import plan_all
from hpcml.config.compose import compose_from_cli
from hpcml.config.user import known_account
from hpcml.errors import ConfigError, HpcmlError, require, why_not
from hpcml.images.readiness import ready_for_images
from hpcml.interop.exporters import Exporter
from hpcml.model.cluster import Cluster, SchedulerName
from hpcml.model.run import Schedule
from hpcml.mounts import file_system_of
from hpcml.paths import Places
from hpcml.report.doctor import Check
from hpcml.runs.private import exchangeable, is_open, no_home, why_shared
from hpcml.schedulers.contract import Ticket
from hpcml.schedulers.description import Scheduler
from hpcml.schedulers.registry import BACKENDS, backend_of, find_programs
from hpcml.store.opening import place_of, refusal_of


def examine(
    places: Places, machine: Machine, cluster: str, folder: str | None = None, *, network: bool = False
) -> Iterator[Check]:
    """Yield the checks of this machine, then those of the profile *cluster*; nothing is raised or changed.

    What cannot be looked at is a failed check. *folder* holds options besides ./conf. The scheduler, where its programs
    are here, is asked one question; no job is submitted. With *network* NVIDIA's registry is asked, too.
    """
    yield Check(what="python", verdict="ok", found=platform.python_version())
    home = _home(places)
    yield home
    yield _store(places)
    yield Check(what="cores", verdict="ok", found=f"{machine.cores} usable")
    yield _gpus(machine)
    yield from _packages()
    yield from _plugins()
    yield from _cluster(places, machine, cluster, folder, network=network, home=home)


def _home(places: Places) -> Check:
    home = places.home
    try:
        nearest = next(place for place in (home, *home.parents) if place.exists())
        found = f"{home} on {file_system_of(home) or 'an unknown file system'}"
        verdict, wrong = _whose(home) if home.is_dir() else ("ok", "")
    except OSError as error:
        return Check(what="HPCML_HOME", verdict="fail", found=no_home(home, error, "made"))
    if verdict != "fail" and not (os.access(nearest, os.W_OK | os.X_OK) and nearest.is_dir()):
        verdict, wrong = "fail", f"{nearest} cannot be written"
    elif verdict != "fail" and nearest == home and (why := refusal_of(home)) is not None:
        verdict, wrong = "fail", f"nothing can be written to {home} ({why})"
    return Check(what="HPCML_HOME", verdict=verdict, found=f"{found}: {wrong}" if wrong else found)


def _whose(home: Path) -> tuple[str, str]:
    """Return a verdict on who else may come into *home*, and what there is to say of it."""
    if shared := why_shared(home):
        return "fail", shared
    if is_open(home):
        return "warn", "open to others; the next submission closes it (docs/shared-folders)"
    if folder := exchangeable(home):
        return "warn", f"others may rename it, since they may write to {folder}: chmod +t {folder} ends that"
    return "ok", ""


def _store(places: Places) -> Check:
    """Check that the store can be opened and written, and that it is not on a file system where SQLite's locks fail."""
    try:
        placement = place_of(places.store_url)
        if placement is not None and not placement.path.exists():
            found, verdict = f"{placement.path} {placement} (made at first use)", "ok"
        else:
            with opened(places) as store:
                found, verdict = f"{store.name} {store.used}", "warn" if store.is_read_only else "ok"
    except HpcmlError as error:
        return Check(what="store", verdict="fail", found=str(error))
    except OSError as error:
        return Check(what="store", verdict="fail", found=why_not(error, places.store_url))
    if placement is not None and placement.is_doubtful:
        found, verdict = f"{found}; SQLite's locks may not hold there: use it from one machine only", "warn"
    return Check(what="store", verdict=verdict, found=found)


def _gpus(machine: Machine) -> Check:
    if not machine.gpus:
        found = "none that NVML shows: runs here use the CPU; tf32 and FP16 are emulated, and labelled so"
        return Check(what="GPUs", verdict="ok", found=found)
    names = ", ".join(
        f"{gpu.name} ({'.'.join(map(str, gpu.compute_capability))}, {gpu.memory_mb} MiB)" for gpu in machine.gpus
    )
    return Check(what="GPUs", verdict="ok", found=f"{names}, driver {machine.gpus[0].driver}")


def _packages() -> Iterator[Check]:
    versions = {dist.name.lower(): dist.version for dist in metadata.distributions() if dist.name}
    torch = versions.get("torch")
    missing = "not installed here: the recipes need it (pip install 'hpcml[torch]'), your own programs may not"
    yield Check(what="torch", verdict="ok" if torch else "warn", found=torch or missing)
    if "pynvml" in versions:  # it shadows nvidia-ml-py's module of that name
        found = f"pynvml {versions['pynvml']} is deprecated and may shadow nvidia-ml-py: pip uninstall pynvml"
        yield Check(what="NVML package", verdict="warn", found=found)


def _plugins() -> Iterator[Check]:
    """Yield what packages add to hpcml, each loaded once for that; one that is broken breaks nothing else."""
    kinds: dict[str, tuple[type[object], Collection[str]]] = {
        plugins.SCHEDULERS: (Scheduler, BACKENDS),
        plugins.SAMPLERS: (NodeSampler, ()),
        plugins.EXPORTERS: (Exporter, FORMS),
    }
    for group, (kind, ours) in kinds.items():
        for plugin in plugins.installed(group):
            check = Check(what="plug-in", verdict="ok", found=str(plugin))
            try:
                plugins.load(group, plugin.name, kind, ours=ours)
            except ConfigError as error:
                check = Check(what="plug-in", verdict="warn", found=str(error))
            yield check


def _cluster(
    places: Places, machine: Machine, name: str, folder: str | None, *, network: bool, home: Check
) -> Iterator[Check]:
    own = [] if folder is None else ["--config-dir", folder]
    what = f"profile {name}"
    try:
        (point,) = compose_from_cli([*own, f"cluster={name}", "workload.command=true"], project=Path.cwd())
        site = point.run.cluster
        yield Check(what=what, verdict="ok", found=f"{site.scheduler.name}, {site.site or 'this machine'}")
        what = "scheduler"
        programs = find_programs(site.scheduler.name)
        if untried := backend_of(site.scheduler.name).untried:
            yield Check(what=f"{site.scheduler.name} itself", verdict="warn", found=untried)
        for program, place in programs.items():
            yield Check(what=program, verdict="ok" if place else "fail", found=place or "not on PATH")
        if site.scheduler is not SchedulerName.local and all(programs.values()):
            yield _answer(Backends(places=places, machine=lambda: machine), site.scheduler.name)
        yield from _account(site)
        for part, is_ok, found in ready_for_images(site, os.environ, network=network):
            yield Check(what=part, verdict="ok" if is_ok else "warn", found=found)
        yield from _webhook(point.run.schedule)
        what = "preflight"
        require(home.verdict != "fail", "nothing can be submitted from HPCML_HOME, as said above")
        (item,) = plan_all([point], machine)
    except HpcmlError as error:
        yield Check(what=what, verdict="fail", found=str(error))
        return
    doubts = [warning for warning in warnings(item, places) if not warning.startswith("resources.account")]
    yield from (Check(what="preflight", verdict="warn", found=doubt) for doubt in doubts)
    if not doubts:
        yield Check(what="preflight", verdict="ok", found="a default run would be accepted")


def _answer(backends: Backends, scheduler: str) -> Check:
    """Ask the scheduler once, about a job that is not ours and probably long gone: that it answers is what counts."""
    what = f"{scheduler} answers"
    try:
        answers = backends.by_name(scheduler).query([Ticket(scheduler=scheduler, job_id="1")])
    except HpcmlError as error:
        return Check(what=what, verdict="fail", found=str(error))
    problems = answers.trouble
    unwell = "warn" if answers.has_queue else "fail"
    return Check(what=what, verdict=unwell if problems else "ok", found=problems or "yes")


def _webhook(schedule: Schedule) -> Iterator[Check]:
    """Check that the file with the webhook's URL exists and that nobody else may read it; nothing without a webhook."""
    if schedule.webhook_file is None:
        return
    path = Path(schedule.webhook_file).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError as error:
        yield Check(what="webhook", verdict="fail", found=f"schedule.webhook_file={path}: {error.strerror}")
        return
    is_private = not stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO)
    found = str(path) if is_private else f"{path} may be read by others, and its URL is a secret: chmod 600 {path}"
    yield Check(what="webhook", verdict="ok" if is_private else "fail", found=found)


def _account(site: Cluster) -> Iterator[Check]:
    if not site.account_required:
        return
    account = known_account(site, os.environ, Path.cwd())
    missing = f"none for {site.name}: HPCML_ACCOUNT, hpcml.yaml here, or your configuration file"
    yield Check(what="account", verdict="ok" if account else "fail", found=account or missing)
