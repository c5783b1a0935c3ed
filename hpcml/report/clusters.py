"""`hpcml cluster`: cluster profiles as a table and in detail."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hpcml.codec import Json, encode
from hpcml.model.cluster import Cluster, Queue, Resources, SchedulerName
from hpcml.report.document import Column, Document, Listing, Pairs, Part, Remarks, Section, Tone
from hpcml.report.render.data import json_ready

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ListedCluster = tuple[Cluster, Resources, Path]  # a cluster, what is asked of it by default, and the file that says so

_TONES: Mapping[str, Tone] = {"active": "good", "unknown": "doubt"}
_IN_SECTIONS = ("name", "queues", "notes", "source", "max_parallel")


def clusters_document(listed: Sequence[ListedCluster]) -> Document:
    """Return one line for each cluster, in the given order; an empty cell means not known.

    The GPUs are those of one node, the queue is the one that runs are submitted to by default. JSON has the fields of
    each profile, `resources` with its presets, and `file` with its path.
    """
    columns: list[Column[ListedCluster]] = [
        Column("name", "name", lambda row: row[0].name),
        Column("scheduler", "scheduler", lambda row: row[0].scheduler.name),
        Column("site", "site", lambda row: row[0].site),
        Column("status", "status", lambda row: row[0].status, tone=lambda row: _TONES.get(row[0].status, "faint")),
        Column("gpus", "GPUs of a node", lambda row: _gpu_words(row[0])),
        Column("cc", "cc", lambda row: row[0].gpu_compute_capability),
        Column("queue", "queue", lambda row: row[1].partition_or_queue or (f"qos {row[1].qos}" if row[1].qos else "")),
    ]
    return Document.of(Listing(columns=columns, rows=listed), record=lambda: [_as_json(*row) for row in listed])


def cluster_document(cluster: Cluster, resources: Resources, path: Path) -> Document:
    """Return everything about one cluster, and how to use it.

    Only what the profile says is shown: fields with the schema's default are left out. *resources* is what a run asks
    for there by default, *path* the file of the profile. The commands at the end are those that work there: a local
    machine has no job script, and of a cluster that is gone only an example is left.
    """
    of_others = {"slurm", "lsf", "pbs"} - {cluster.scheduler.name}
    known = {name: value for name, value in _decided(cluster).items() if name not in {*_IN_SECTIONS, *of_others}}
    source = {} if cluster.source is None else {"source": cluster.source}
    parts: list[tuple[str, Part | None]] = [
        (cluster.name, _pairs({"status": cluster.status, **known})),
        ("queues", _pairs({name: _queue_words(queue) for name, queue in cluster.queues.items()})),
        ("what a run asks for unless you say otherwise (resources.*)", _pairs(_decided(resources))),
        ("notes", Remarks(lines=cluster.notes) if cluster.notes else None),
        ("where this is from", _pairs({**source, "file": str(path)})),
        ("how to use it", Remarks(lines=list(_usage(cluster)))),
    ]
    sections = [Section(heading=heading, parts=[part]) for heading, part in parts if part is not None]
    return Document(sections=sections, record=lambda: _as_json(cluster, resources, path))


def _pairs(values: Mapping[str, object]) -> Pairs | None:
    return Pairs(values={key: _value(value) for key, value in values.items()}) if values else None


def _gpu_words(cluster: Cluster) -> str:
    if cluster.gpus_per_node == 0:
        return "none"
    model = cluster.gpu_model or cluster.gpu_type or ""
    return model if cluster.gpus_per_node is None else f"{cluster.gpus_per_node}x {model}".rstrip()


def _queue_words(queue: Queue) -> str:
    words = [
        None if queue.gpus is None else "GPUs" if queue.gpus else "no GPUs",
        queue.min_walltime and f"from {queue.min_walltime}",
        queue.max_walltime and f"up to {queue.max_walltime}",
        _range("nodes", queue.min_nodes, queue.max_nodes),
        _range("GPUs", None, queue.max_gpus),
        queue.note,
    ]
    return "; ".join(word for word in words if word)


def _range(of_a_job: str, least: int | None, most: int | None) -> str | None:
    """Return how many a job may have, of what is limited at all."""
    words = [word for word, limit in ((f"{least} or more", least), (f"{most} at most", most)) if limit is not None]
    return f"{of_a_job} of a job: {', '.join(words)}" if words else None


def _usage(cluster: Cluster) -> Iterator[str]:
    """Yield the commands that use the cluster, as far as it is in use."""
    word = shlex.quote(f"+cluster={cluster.name}")
    account = " resources.account=YOUR-ACCOUNT" if cluster.account_required else ""
    if cluster.status == "decommissioned":
        yield f"hpcml run {word}{account} --dry-run    (the job it would have been: an example, nothing runs there)"
        return
    if cluster.scheduler is SchedulerName.local:
        yield "hpcml run    (it is the default)" if cluster.name == "local" else f"hpcml run {word}"
        return
    yield f"hpcml run {word}{account} --dry-run    (shows the job script)"
    yield f"hpcml run {word}{account}    (submits it; on a login node of the cluster)"
    gpus = cluster.gpus_per_node or 0
    if gpus > 1:
        yield f"hpcml run {word}{account} strategy=ddp resources.gpus_per_node={gpus}    (all GPUs of a node)"


def _as_json(cluster: Cluster, resources: Resources, path: Path) -> Json:
    return json_ready({**encode(cluster), "resources": encode(resources), "file": str(path)})


def _decided(node: DataclassInstance) -> dict[str, object]:
    """Return the fields of the profile that differ from the schema's defaults."""
    said = {field.name: getattr(node, field.name) for field in fields(node)}
    default = {
        field.name: field.default if field.default_factory is MISSING else field.default_factory()
        for field in fields(node)
    }
    return {name: value for name, value in said.items() if value not in ([], {}) and value != default[name]}


def _value(value: object) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return ", ".join(f"{name}={_value(one)}" for name, one in _decided(value).items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    word = encode(value)
    return word if isinstance(word, str) and word else json.dumps(word)
