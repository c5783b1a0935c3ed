"""Runs as a Process Run Crate: one RO-Crate that says who ran what, with what, on what, when, and what came of it.

https://w3id.org/ro/wfrun/process/0.5, which is a profile of RO-Crate 1.1. Each run is a ``CreateAction`` of schema.org:
its instrument is the program, its objects are the manifest and the settings, its results the curves, the events and the
last values of metrics.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hpcml.codec import Json, encode
from hpcml.errors import HpcmlError
from hpcml.interop import tables
from hpcml.interop.csv_export import write_rows
from hpcml.interop.exported import Export, WholeRun, clean, json_ready, needing
from hpcml.interop.output import file_name, is_inside
from hpcml.model.identity import changes_results
from hpcml.model.secrets import masked_json
from hpcml.model.state import State
from hpcml.runs.files import read_raw
from hpcml.runs.layout import RunDir

PROFILE = "https://w3id.org/ro/wfrun/process/0.5"
_TERMS = "https://w3id.org/ro/terms/workflow-run/context"
_NO_LICENSE = "No licence was stated for these data."
_STATUS: Mapping[State, str] = {State.PENDING: "PotentialActionStatus", State.RUNNING: "ActiveActionStatus"}
_HARDWARE = (
    *("hostname", "cpu_model", "cores", "memory_mb"),
    *("n_gpus", "gpu_model", "gpu_memory_mb", "gpu_driver", "gpu_uuids"),
)
_USED = ("gpu_s", "energy_j", "energy_method", "energy_scope", "mean_power_w", "co2_g", "co2_source", "cpu_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a crate says about itself, and what is put into it; `hpcml export` fills it from its options."""

    made_at: datetime
    hpcml_version: str
    license: str | None = None  # a URL or a text; None: nobody said
    with_artifacts: bool = False  # logs and what the runs reported as artifacts are put in, too


@dataclass(slots=True)
class _Crate:
    """The crate in the making, and what is shared by its runs."""

    rocrate: Any
    about: About
    scratch: Path  # files that are made for the crate
    agents: dict[str, Any] = field(default_factory=dict)
    software: dict[str, Any] = field(default_factory=dict)
    images: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)


def write_crate(export: Export, folder: Path, about: About) -> None:
    """Write the crate (its JSON-LD description and the files of the runs) into *folder*.

    The files of a run lie in ``runs/<uid>``. Its manifest is left out where the directory of the run is gone. Files
    that are made for the crate are written beside *folder* first, and removed in any case. Raises `ConfigError` where
    rocrate is missing.
    """
    with needing("rocrate", extra="rocrate"):
        from rocrate.model.contextentity import ContextEntity  # noqa: PLC0415 - an extra
        from rocrate.rocrate import ROCrate  # noqa: PLC0415
    library = ROCrate(version="1.1")
    library.metadata.extra_contexts.append(_TERMS)
    root = library.root_dataset
    experiments = sorted({record.experiment for record in export.records})
    count = f"{len(export.records)} run{'s' if len(export.records) != 1 else ''}"
    root["name"] = clean(f"{count} of {', '.join(experiments)}")
    root["description"] = clean(f"{count} of machine learning, recorded by hpcml: {', '.join(experiments)}")
    root["license"] = _license(library, about.license)
    root.datePublished = about.made_at
    profile = {"@type": "CreativeWork", "name": "Process Run Crate", "version": "0.5"}
    root["conformsTo"] = library.add(ContextEntity(library, PROFILE, properties=profile))
    scratch = folder.with_name(f"{folder.name}.parts")
    crate = _Crate(rocrate=library, about=about, scratch=scratch)
    try:
        actions = [_add_run(crate, run, export) for run in export.runs]
        root["mentions"] = actions
        agents = list(crate.agents.values())
        root["author"] = agents[0] if len(agents) == 1 else agents
        library.write(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _add_run(crate: _Crate, run: WholeRun, export: Export) -> Any:  # noqa: ANN401 - an entity, of a library without types
    """Add one run as an action, with its files, its settings, its program, its user and its image."""
    record, run_dir = run.record, RunDir(Path(run.record.path))
    manifest = _manifest(run_dir)
    name = file_name(record.uid, crate.names)
    inputs = []
    if manifest:
        (crate.scratch / name).mkdir(parents=True)
        made = crate.scratch / name / run_dir.manifest.name
        made.write_text(json.dumps(masked_json(manifest), indent=2) + "\n", encoding="utf-8")
        inputs.append(_file(crate, made, f"runs/{name}/{made.name}", "The run as it was asked for"))
    asked = {
        run_dir.git_diff: "What the code had that its commit had not",
        run_dir.image_record: "What the image was built from, and the packages in it",
    }
    inputs += [
        _file(crate, path, f"runs/{name}/{path.name}", described) for path, described in asked.items() if path.is_file()
    ]
    settings = {key: value for key, value in record.params.items() if changes_results(key) and _is_plain(value)}
    facts = {key: record.facts[key] for key in _HARDWARE if _is_plain(record.facts.get(key))}
    used = {} if record.usage is None else {key: getattr(record.usage, key) for key in _USED}
    resources = {**facts, "wall_s": record.wall_s, "processes": record.facts.get("world_size"), **used}
    finals = {metric: value for metric in record.metrics if (value := export.last_value(record, metric)) is not None}
    properties: dict[str, Any] = {
        "name": clean(f"{record.experiment}: {record.name or record.uid}"),
        "description": clean(f"precision {record.precision}, seed {record.seed}, state {record.state.value}"),
        "actionStatus": f"http://schema.org/{_status(record.state)}",
        "agent": _agent(crate, manifest),
        "resourceUsage": _values(crate, f"#{name}-used", resources),
    }
    if record.t_start is not None:
        properties["startTime"] = _moment(record.t_start)
    if record.t_end is not None:
        properties["endTime"] = _moment(record.t_end)
    if record.state.is_final and record.state is not State.COMPLETED:
        properties["error"] = clean(": ".join(filter(None, (record.state.value, record.cause, record.reason))))
    if (image := _image(crate, manifest, record.facts)) is not None:
        properties["containerImage"] = image
    return crate.rocrate.add_action(
        _instrument(crate, run, manifest),
        identifier=f"#{name}",
        object=[*inputs, *_values(crate, f"#{name}-set", settings)],
        result=[*_results(crate, run, run_dir, name), *_values(crate, f"#{name}-last", finals)],
        properties={key: value for key, value in properties.items() if value not in (None, [])},
    )


def _results(crate: _Crate, run: WholeRun, run_dir: RunDir, name: str) -> list[Any]:
    """Add the files that came of a run: its curves, its events, and on request its logs and artifacts."""
    made = crate.scratch / name
    made.mkdir(parents=True, exist_ok=True)
    points, events = made / "points.csv", made / "events.jsonl"
    with points.open("x", encoding="utf-8", newline="") as file:
        write_rows(file, [[column.name for column in tables.POINTS]])
        write_rows(file, tables.points_rows(run))
    with events.open("x", encoding="utf-8") as file:
        for event in run.events:
            file.write(json.dumps(json_ready({**encode(event), "details": dict(event.details)})) + "\n")
    found = [
        _file(crate, points, f"runs/{name}/points.csv", "Every value of every metric"),
        _file(crate, events, f"runs/{name}/events.jsonl", "Everything that happened"),
    ]
    if crate.about.with_artifacts:
        for path, described in artifact_files(run, run_dir):
            inside = "/".join(file_name(part, set()) for part in path.relative_to(run_dir.path).parts)
            found.append(_file(crate, path, f"runs/{name}/files/{inside}", described))
    return found


def artifact_files(run: WholeRun, run_dir: RunDir) -> list[tuple[Path, str]]:
    """Return a run's logs and reported artifacts, each with a description; only files inside its run directory.

    Empty logs are left out, and so is what a program reported as an artifact and no file is there for. The paths are
    below the directory of *run_dir*. The exports to RO-Crate and MLflow use it.
    """
    found = {path: "What was printed" for path in sorted(run_dir.logs.glob("*")) if path.stat().st_size}
    for event in run.events:
        named = event.details.get("path")
        if event.name == "artifact" and isinstance(named, str) and "\0" not in named:
            found[run_dir.path / named] = clean(str(event.details.get("kind") or "An artifact of the run"))
    return [(path, words) for path, words in found.items() if is_inside(path, run_dir.path)]


def _file(crate: _Crate, source: Path, inside: str, described: str) -> Any:  # noqa: ANN401
    kinds = {".json": "application/json", ".jsonl": "application/jsonl", ".csv": "text/csv", ".diff": "text/x-diff"}
    properties: dict[str, Any] = {
        "name": inside.rpartition("/")[2],
        "description": described,
        "contentSize": str(source.stat().st_size),
        "encodingFormat": kinds.get(source.suffix, "text/plain" if source.suffix in (".out", ".err", ".log") else None),
        "sha256": _sha256(source),
    }
    return crate.rocrate.add_file(
        str(source), inside, properties={key: value for key, value in properties.items() if value is not None}
    )


def _license(library: Any, said: str | None) -> Any:  # noqa: ANN401
    """Return the licence as a crate has it: a URL as an entity, a text as it is."""
    from rocrate.model.contextentity import ContextEntity  # noqa: PLC0415 - an extra

    if said is None or not said.startswith(("https://", "http://")):
        return said or _NO_LICENSE
    return library.add(ContextEntity(library, said, properties={"@type": "CreativeWork", "name": said}))


def _values(crate: _Crate, prefix: str, values: Mapping[str, object]) -> list[Any]:
    """Add each known value as a ``PropertyValue`` of schema.org and return them; their ids are ``PREFIX-0``, ..."""
    from rocrate.model.contextentity import ContextEntity  # noqa: PLC0415 - an extra

    added = []
    for number, (name, value) in enumerate(values.items()):
        if value is not None:
            properties = {"@type": "PropertyValue", "name": clean(name), "value": _plain(value)}
            added.append(crate.rocrate.add(ContextEntity(crate.rocrate, f"{prefix}-{number}", properties=properties)))
    return added


def _agent(crate: _Crate, manifest: Json) -> Any:  # noqa: ANN401
    from rocrate.model.person import Person  # noqa: PLC0415 - an extra

    user = clean(str(manifest.get("provenance", {}).get("user") or "unknown"))
    if user not in crate.agents:
        identifier = f"#user-{len(crate.agents) + 1}"
        crate.agents[user] = crate.rocrate.add(Person(crate.rocrate, identifier, properties={"name": user}))
    return crate.agents[user]


def _instrument(crate: _Crate, run: WholeRun, manifest: Json) -> Any:  # noqa: ANN401
    """Return the program of a run, one entity for each command, commit and set of frameworks."""
    from rocrate.model.softwareapplication import SoftwareApplication  # noqa: PLC0415 - an extra

    record = run.record
    recipe, command = record.params.get("model.recipe"), record.params.get("workload.command")
    name = clean(str(recipe or command or record.params.get("model.name") or "unknown"))
    version = record.git_commit and f"{record.git_commit}{'-dirty' if record.git_dirty else ''}"
    packages = manifest.get("provenance", {}).get("packages") or {}
    needs = [f"{package} {packages[package]}" for package in ("torch", "tensorflow", "jax") if package in packages]
    key = json.dumps([name, version, needs])
    if key not in crate.software:
        properties = {
            "name": name,
            "description": f"Run by hpcml {manifest.get('provenance', {}).get('hpcml_version') or ''}".strip(),
            "softwareVersion": version,
            "softwareRequirements": needs or None,
        }
        known = {name: value for name, value in properties.items() if value is not None}
        identifier = f"#program-{len(crate.software) + 1}"
        crate.software[key] = crate.rocrate.add(SoftwareApplication(crate.rocrate, identifier, properties=known))
    return crate.software[key]


def _image(crate: _Crate, manifest: Json, facts: Mapping[str, Any]) -> Any:  # noqa: ANN401
    from rocrate.model.contextentity import ContextEntity  # noqa: PLC0415 - an extra

    image = (manifest.get("plan") or {}).get("image")
    if not isinstance(image, dict):
        return None
    path, digest = clean(str(image.get("path"))), facts.get("image_sha256") or image.get("sha256")
    if path not in crate.images:
        properties = {
            "@type": "ContainerImage",
            "additionalType": "https://w3id.org/ro/terms/workflow-run#SIFImage",
            "name": path.rpartition("/")[2],
            **({"sha256": str(digest)} if digest else {}),
        }
        identifier = f"#image-{len(crate.images) + 1}"
        crate.images[path] = crate.rocrate.add(ContextEntity(crate.rocrate, identifier, properties=properties))
    return crate.images[path]


def _manifest(run_dir: RunDir) -> Json:
    try:
        return read_raw(run_dir.manifest)
    except HpcmlError:
        return {}  # its directory is gone; what the store knows of it is still told


def _status(state: State) -> str:
    ended = "CompletedActionStatus" if state is State.COMPLETED else "FailedActionStatus"
    return _STATUS.get(state, ended)


def _moment(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)


def _plain(value: object) -> object:
    ready = json_ready(value)
    return clean(ready) if isinstance(ready, str) else ready


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
