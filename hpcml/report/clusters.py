"""`hpcml cluster`: cluster profiles as a table, in detail, and as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hpcml.codec import Json, encode
from hpcml.model.cluster import Cluster, Queue, Resources, SchedulerName
from hpcml.report.render.data import json_ready, json_text
from hpcml.report.text import safe

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

ListedCluster = tuple[Cluster, Resources, Path]  # a cluster, what is asked of it by default, and the file that says so

_HEADINGS = ("name", "scheduler", "site", "status", "GPUs of a node", "cc", "queue")
_FOLDED = ("site", "GPUs of a node")  # where long names come from; the rest keeps its line
_STYLES = {"active": "green", "unknown": "yellow"}
_IN_SECTIONS = ("name", "queues", "notes", "source", "max_parallel")


def clusters_table(listed: Sequence[ListedCluster], *, console: Console) -> Table:
    """Return one line for each cluster, in the given order; an empty cell means not known.

    The GPUs are those of one node, the queue is the one that runs are submitted to by default.
    """
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, show_edge=False)
    for heading in _HEADINGS:
        table.add_column(heading, overflow="fold", no_wrap=heading not in _FOLDED)
    for cluster, resources, _ in listed:
        words = [Text(safe(word)) for word in _words(cluster, resources)]
        words[3].stylize(_STYLES.get(cluster.status, "dim"))
        table.add_row(*words)
    return table


def clusters_json(listed: Sequence[ListedCluster]) -> str:
    """Return a JSON list of objects as `cluster_json` makes them, in the given order."""
    return json_text([_as_json(*one) for one in listed])


def cluster_json(cluster: Cluster, resources: Resources, path: Path) -> str:
    """Return one JSON object: the fields of the profile, `resources` with its presets, `file` with its path."""
    return json_text(_as_json(cluster, resources, path))


def cluster_details(cluster: Cluster, resources: Resources, path: Path) -> RenderableType:
    """Return everything about one cluster, and how to use it.

    Only what the profile says is shown: fields with the schema's default are left out. *resources* is what a run asks
    for there by default, *path* the file of the profile. The commands at the end are those that work there: a local
    machine has no job script, and of a cluster that is gone only an example is left.
    """
    of_others = {"slurm", "lsf", "pbs"} - {cluster.scheduler.name}
    known = {name: value for name, value in _decided(cluster).items() if name not in {*_IN_SECTIONS, *of_others}}
    asked = _decided(resources)
    parts: list[RenderableType] = [Text(safe(cluster.name), style="bold"), _pairs({"status": cluster.status, **known})]
    if cluster.queues:
        parts += [_title("queues"), _pairs({name: _queue_words(queue) for name, queue in cluster.queues.items()})]
    if asked:
        parts += [_title("what a run asks for unless you say otherwise (resources.*)"), _pairs(asked)]
    if cluster.notes:
        parts += [_title("notes"), *(_hanging(note) for note in cluster.notes)]
    source = {} if cluster.source is None else {"source": cluster.source}
    parts += [_title("where this is from"), _pairs({**source, "file": str(path)})]
    return Group(*parts, _title("how to use it"), *(_hanging(line) for line in _usage(cluster)))


def _words(cluster: Cluster, resources: Resources) -> list[str]:
    return [
        cluster.name,
        cluster.scheduler.name,
        cluster.site or "",
        cluster.status,
        _gpu_words(cluster),
        cluster.gpu_compute_capability or "",
        resources.partition_or_queue or (f"qos {resources.qos}" if resources.qos else ""),
    ]


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


def _pairs(pairs: Mapping[str, object]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for key, value in pairs.items():
        table.add_row(Text(safe(key)), Text(safe(_value(value))))
    return Padding(table, (0, 0, 0, 2))


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


def _hanging(text: str) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("-", Text(safe(text)))
    return Padding(table, (0, 0, 0, 2))


def _title(name: str) -> Text:
    return Text(f"\n{name}", style="bold")
