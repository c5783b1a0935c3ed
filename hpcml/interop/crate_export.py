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
_SIF = "https://w3id.org/ro/terms/workflow-run#SIFImage"
_NO_LICENSE = "No licence was stated for these data."
_STATUS: Mapping[State, str] = {
    State.PENDING: "PotentialActionStatus",
    State.RUNNING: "ActiveActionStatus",
    State.COMPLETED: "CompletedActionStatus",
}
_HARDWARE = (
    "hostname",
    "cpu_model",
    "cores",
    "memory_mb",
    "n_gpus",
    "gpu_model",
    "gpu_memory_mb",
    "gpu_driver",
    "gpu_uuids",
)
_USED = ("gpu_s", "energy_j", "energy_method", "energy_scope", "mean_power_w", "co2_g", "co2_source", "cpu_s")
_KINDS = {
    ".json": "application/json",
    ".jsonl": "application/jsonl",
    ".csv": "text/csv",
    ".diff": "text/x-diff",
    **dict.fromkeys((".out", ".err", ".log"), "text/plain"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What a crate says about itself, and what is put into it; `hpcml export` fills it from its options."""

    made_at: datetime
    license: str | None = None  # a URL or a text; None: nobody said
    with_artifacts: bool = False  # logs and what the runs reported as artifacts are put in, too


def write_crate(export: Export, folder: Path, about: About) -> None:
    """Write the crate (its JSON-LD description and the files of the runs) into *folder*.

    The files of a run lie in ``runs/<uid>``. Its manifest is left out where the directory of the run is gone. Files
    that are made for the crate are written beside *folder* first, and removed in any case. Raises `ConfigError` where
    rocrate is missing.
    """
    with needing("rocrate", extra="rocrate"):
        from rocrate.rocrate import ROCrate  # noqa: PLC0415 - an extra
    library = ROCrate(version="1.1")
    library.metadata.extra_contexts.append(_TERMS)
    crate = _Crate(rocrate=library, about=about, scratch=folder.with_name(f"{folder.name}.parts"))
    root = library.root_dataset
    experiments = ", ".join(sorted({record.experiment for record in export.records}))
    count = f"{len(export.records)} run{'s' if len(export.records) != 1 else ''}"
    root["name"] = clean(f"{count} of {experiments}")
    root["description"] = clean(f"{count} of machine learning, recorded by hpcml: {experiments}")
    root["license"] = about.license or _NO_LICENSE
    if about.license is not None and about.license.startswith(("https://", "http://")):
        root["license"] = crate.entity(about.license, "CreativeWork", name=about.license)
    root.datePublished = about.made_at
    root["conformsTo"] = crate.entity(PROFILE, "CreativeWork", name="Process Run Crate", version="0.5")
    try:
        root["mentions"] = [_add_run(crate, run) for run in export.runs]
        authors = [entity for entity in crate.shared.values() if entity.type == "Person"]
        root["author"] = authors[0] if len(authors) == 1 else authors
        library.write(folder)
    finally:
        shutil.rmtree(crate.scratch, ignore_errors=True)


@dataclass(slots=True, kw_only=True)
class _Crate:
    """The crate in the making."""

    rocrate: Any  # a ROCrate
    about: About
    scratch: Path  # files that are made for the crate
    shared: dict[str, Any] = field(default_factory=dict)  # entities that several runs have, by what they say
    names: set[str] = field(default_factory=set)

    def entity(self, identifier: str, kind: str, **properties: object) -> Any:  # noqa: ANN401 - of a library without types
        """Add what is no file; properties that are None are left out."""
        from rocrate.model.contextentity import ContextEntity  # noqa: PLC0415 - an extra

        known = {"@type": kind, **{name: value for name, value in properties.items() if value is not None}}
        return self.rocrate.add(ContextEntity(self.rocrate, identifier, properties=known))

    def shared_entity(self, stem: str, kind: str, **properties: object) -> Any:  # noqa: ANN401
        """Add what several runs have once; its id is ``#STEM-1``, ..."""
        key = json.dumps([stem, properties], sort_keys=True)
        if key not in self.shared:
            number = sum(json.loads(known)[0] == stem for known in self.shared) + 1
            self.shared[key] = self.entity(f"#{stem}-{number}", kind, **properties)
        return self.shared[key]

    def file(self, source: Path, inside: str, described: str) -> Any:  # noqa: ANN401
        """Add a file that is put at *inside*, with its size and hash."""
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        properties = {
            "name": inside.rpartition("/")[2],
            "description": described,
            "contentSize": str(source.stat().st_size),
            "sha256": digest,
        }
        if source.suffix in _KINDS:
            properties["encodingFormat"] = _KINDS[source.suffix]
        return self.rocrate.add_file(str(source), inside, properties=properties)

    def values(self, prefix: str, values: Mapping[str, object]) -> list[Any]:
        """Add each known value as a ``PropertyValue``; their ids are ``PREFIX-0``, ..."""
        plain = {name: json_ready(value) for name, value in values.items()}
        return [
            self.entity(
                f"{prefix}-{number}",
                "PropertyValue",
                name=clean(name),
                value=clean(value) if isinstance(value, str) else value,
            )
            for number, (name, value) in enumerate(plain.items())
            if value is not None
        ]


def _add_run(crate: _Crate, run: WholeRun) -> Any:  # noqa: ANN401 - an entity
    """Add one run as an action, with its files, its settings, its program, its user and its image."""
    record, run_dir = run.record, RunDir(Path(run.record.path))
    try:
        manifest = read_raw(run_dir.manifest)
    except HpcmlError:
        manifest = {}  # its directory is gone; what the store knows of it is still told
    provenance, name = manifest.get("provenance", {}), file_name(record.uid, crate.names)
    settings = {key: value for key, value in record.params.items() if changes_results(key) and _is_plain(value)}
    facts = {key: record.facts[key] for key in _HARDWARE if _is_plain(record.facts.get(key))}
    used = {} if record.usage is None else {key: getattr(record.usage, key) for key in _USED}
    resources = {**facts, "wall_s": record.wall_s, "processes": record.facts.get("world_size"), **used}
    finals = {metric: summary.last for metric, summary in record.metrics.items() if summary.last is not None}
    has_failed = record.state.is_final and record.state is not State.COMPLETED
    properties = {
        "name": clean(f"{record.experiment}: {record.name or record.uid}"),
        "description": clean(f"precision {record.precision}, seed {record.seed}, state {record.state.value}"),
        "actionStatus": f"http://schema.org/{_STATUS.get(record.state, 'FailedActionStatus')}",
        "agent": crate.shared_entity("user", "Person", name=clean(str(provenance.get("user") or "unknown"))),
        "resourceUsage": crate.values(f"#{name}-used", resources),
        "startTime": _moment(record.t_start),
        "endTime": _moment(record.t_end),
        "error": clean(": ".join(filter(None, (record.state.value, record.cause, record.reason))))
        if has_failed
        else None,
        "containerImage": _image(crate, manifest, record.facts),
    }
    return crate.rocrate.add_action(
        _instrument(crate, run, provenance),
        identifier=f"#{name}",
        object=[*_inputs(crate, manifest, run_dir, name), *crate.values(f"#{name}-set", settings)],
        result=[*_results(crate, run, run_dir, name), *crate.values(f"#{name}-last", finals)],
        properties={key: value for key, value in properties.items() if value not in (None, [])},
    )


def _inputs(crate: _Crate, manifest: Json, run_dir: RunDir, name: str) -> list[Any]:
    """Add what a run was begun with: its manifest, without secrets, and the code that is in no commit."""
    made = crate.scratch / name
    made.mkdir(parents=True)
    if manifest:
        text = json.dumps(masked_json(manifest), indent=2) + "\n"
        (made / run_dir.manifest.name).write_text(text, encoding="utf-8")
    asked = {
        made / run_dir.manifest.name: "The run as it was asked for",
        run_dir.git_diff: "What the code had that its commit had not",
        run_dir.image_record: "What the image was built from, and the packages in it",
    }
    return [crate.file(path, f"runs/{name}/{path.name}", words) for path, words in asked.items() if path.is_file()]


def _results(crate: _Crate, run: WholeRun, run_dir: RunDir, name: str) -> list[Any]:
    """Add the files that came of a run: its curves, its events, and on request its logs and artifacts."""
    points, events = crate.scratch / name / "points.csv", crate.scratch / name / "events.jsonl"
    with points.open("x", encoding="utf-8", newline="") as file:
        write_rows(file, [[column.name for column in tables.POINTS]])
        write_rows(file, tables.points_rows(run))
    with events.open("x", encoding="utf-8") as file:
        for event in run.events:
            file.write(json.dumps(json_ready({**encode(event), "details": dict(event.details)})) + "\n")
    found = [
        crate.file(points, f"runs/{name}/points.csv", "Every value of every metric"),
        crate.file(events, f"runs/{name}/events.jsonl", "Everything that happened"),
    ]
    for path, described in artifact_files(run, run_dir) if crate.about.with_artifacts else ():
        inside = "/".join(file_name(part, set()) for part in path.relative_to(run_dir.path).parts)
        found.append(crate.file(path, f"runs/{name}/files/{inside}", described))
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


def _instrument(crate: _Crate, run: WholeRun, provenance: Json) -> Any:  # noqa: ANN401
    """Return the program of a run, one entity for each command, commit and set of frameworks."""
    record, packages = run.record, provenance.get("packages") or {}
    recipe, command = record.params.get("model.recipe"), record.params.get("workload.command")
    needs = [f"{package} {packages[package]}" for package in ("torch", "tensorflow", "jax") if package in packages]
    return crate.shared_entity(
        "program",
        "SoftwareApplication",
        name=clean(str(recipe or command or record.params.get("model.name") or "unknown")),
        description=f"Run by hpcml {provenance.get('hpcml_version') or ''}".strip(),
        softwareVersion=record.git_commit and f"{record.git_commit}{'-dirty' if record.git_dirty else ''}",
        softwareRequirements=needs or None,
    )


def _image(crate: _Crate, manifest: Json, facts: Mapping[str, Any]) -> Any:  # noqa: ANN401
    image = (manifest.get("plan") or {}).get("image")
    if not isinstance(image, dict):
        return None
    name, digest = clean(str(image.get("path"))).rpartition("/")[2], facts.get("image_sha256") or image.get("sha256")
    return crate.shared_entity("image", "ContainerImage", additionalType=_SIF, name=name, sha256=digest and str(digest))


def _moment(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float)
