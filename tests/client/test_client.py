from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcml_client
from hpcml.runs.journal import CLOSED, Event, Metrics, is_cut_short, read_journal


def _connect(run_dir: Path, **environ: str) -> hpcml_client.Client:
    return hpcml_client.connect({"HPCML_RUN_DIR": str(run_dir), "HPCML_RUN_ID": "uid", **environ})


def _records(run_dir: Path) -> list[Metrics | Event]:
    """Return what was reported, without the record that ends each journal."""
    found = [record for path in sorted((run_dir / "journal").iterdir()) for record in read_journal(path).records]
    return [record for record in found if not isinstance(record, Event) or record.name != CLOSED]


def test_a_script_started_by_hand_gets_a_client_that_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with hpcml_client.connect({}) as run:
        run.metric("loss", 1.0)
        run.note("text")
        run.epoch(1)

    assert list(tmp_path.iterdir()) == []
    assert (run.run_dir, run.config, run.precision, run.numerics) == (None, {}, "fp32", "auto")
    assert (run.rank, run.world_size, run.local_rank) == (0, 1, 0)


def test_metrics_without_a_step_are_numbered_by_name(tmp_path: Path) -> None:
    with _connect(tmp_path) as run:
        run.metric("loss", 3.0)
        run.metric("loss", 2)
        run.metric("accuracy", 0.5, step=10)
        run.metric("accuracy", 0.6)
        run.metrics({"loss": 1.0, "accuracy": math.inf})

    found = [(record.step, record.values) for record in _records(tmp_path) if isinstance(record, Metrics)]
    assert found == [
        (0, {"loss": 3.0}),
        (1, {"loss": 2.0}),
        (10, {"accuracy": 0.5}),
        (11, {"accuracy": 0.6}),
        (12, {"loss": 1.0, "accuracy": math.inf}),
    ]


@pytest.mark.parametrize("value", [True, "3", None, [1.0], 1j, 10**400])
def test_what_is_no_number_is_refused_at_once(tmp_path: Path, value: object) -> None:
    with _connect(tmp_path) as run, pytest.raises(TypeError):
        run.metric("loss", value)

    assert _records(tmp_path) == []


@pytest.mark.torch
def test_a_tensor_is_a_number_if_it_holds_one(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with _connect(tmp_path) as run:
        run.metric("loss", torch.tensor(0.5, requires_grad=True))
        with pytest.raises(TypeError):
            run.metric("loss", torch.tensor([0.5, 0.5]))

    (record,) = _records(tmp_path)
    assert isinstance(record, Metrics)
    assert record.values == {"loss": 0.5}


@pytest.mark.parametrize(("name", "error"), [("", ValueError), (7, TypeError), (None, TypeError)])
def test_a_bad_name_is_refused_even_outside_of_a_run(name: object, error: type[Exception]) -> None:
    with hpcml_client.connect({}) as run, pytest.raises(error):
        run.metric(name, 1.0)  # type: ignore[arg-type]


def test_a_step_that_is_no_integer_is_refused() -> None:
    with hpcml_client.connect({}) as run, pytest.raises(TypeError):
        run.metric("loss", 1.0, step=0.5)  # type: ignore[arg-type]


def test_details_of_an_event_may_have_any_name(tmp_path: Path) -> None:
    with _connect(tmp_path) as run:
        run.event("config", name="resnet", self=1)

    (event,) = [record for record in _records(tmp_path) if isinstance(record, Event)]
    assert event.details == {"name": "resnet", "self": 1}


def test_events_are_journalled_in_the_words_of_the_reader(tmp_path: Path) -> None:
    with _connect(tmp_path) as run:
        run.epoch(2)
        run.note("changed the schedule")
        run.event("checkpoint", step=7, path=tmp_path)

    found = [(record.name, record.details) for record in _records(tmp_path) if isinstance(record, Event)]
    assert found == [
        ("epoch", {"number": 2}),
        ("note", {"text": "changed the schedule"}),
        ("checkpoint", {"step": 7, "path": str(tmp_path)}),
    ]


def test_an_artifact_is_named_relative_to_the_run_and_has_its_hash(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "model.pt").write_bytes(b"weights")
    (tmp_path / "elsewhere").write_bytes(b"")

    with _connect(run_dir) as run:
        run.artifact(run_dir / "model.pt", kind="model")
        run.artifact(str(tmp_path / "elsewhere"))

    inside, outside = [record.details for record in _records(run_dir) if isinstance(record, Event)]
    digest = hashlib.sha256(b"weights").hexdigest()
    assert inside == {"path": "model.pt", "kind": "model", "bytes": 7, "sha256": digest}
    assert outside["path"] == str(tmp_path / "elsewhere")


def test_an_artifact_that_was_not_written_is_an_error(tmp_path: Path) -> None:
    with _connect(tmp_path) as run, pytest.raises(FileNotFoundError, match="is no file"):
        run.artifact(tmp_path / "missing")


def test_configuration_and_precision_come_from_the_manifest(tmp_path: Path) -> None:
    manifest = tmp_path / "run.json"
    manifest.write_text(json.dumps({"run": {"precision": {"name": "tf32"}}, "plan": {"numerics": "emulated"}}))

    with _connect(tmp_path, HPCML_CONFIG=str(manifest)) as run:
        assert (run.precision, run.numerics) == ("tf32", "emulated")
    with _connect(tmp_path, HPCML_CONFIG=str(manifest), HPCML_PRECISION="bf16") as run:
        assert run.precision == "bf16"


@pytest.mark.parametrize("content", [None, "{", "[]"])
def test_a_configuration_that_cannot_be_read_is_an_error(tmp_path: Path, content: str | None) -> None:
    manifest = tmp_path / "run.json"
    if content is not None:
        manifest.write_text(content)

    with pytest.raises(RuntimeError, match=r"run\.json"):
        hpcml_client.connect({"HPCML_CONFIG": str(manifest)})


@pytest.mark.parametrize(
    ("environ", "ranks"),
    [
        ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "9"}, (3, 4, 1)),
        ({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}, (5, 8, 1)),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8", "SLURM_LOCALID": "0"}, (0, 1, 0)),  # by hand, in a job's script
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}, (1, 2, 1)),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"},
            (1, 2, 0),
        ),
        ({"PMI_RANK": "2", "PMI_SIZE": "3"}, (2, 3, 0)),
        ({"WORLD_SIZE": "4"}, (0, 1, 0)),
    ],
)
def test_ranks_are_read_from_one_launcher(environ: dict[str, str], ranks: tuple[int, int, int]) -> None:
    run = hpcml_client.connect(environ)

    assert (run.rank, run.world_size, run.local_rank) == ranks


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        ({"RANK": "first"}, "RANK='first' must be an integer"),
        ({"RANK": "3"}, "RANK=3 is no rank of WORLD_SIZE=1: set both"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "RANK=4 is no rank of WORLD_SIZE=4: set both"),
    ],
)
def test_a_rank_that_is_none_is_an_error(environ: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        hpcml_client.connect(environ)


def test_each_rank_and_attempt_has_its_journal(tmp_path: Path) -> None:
    with _connect(tmp_path, RANK="3", WORLD_SIZE="4", HPCML_ATTEMPT="2") as run:
        run.note("here")

    (path,) = (tmp_path / "journal").iterdir()
    header = read_journal(path).header
    assert header is not None
    assert (header.run, header.attempt, header.writer) == ("uid", 2, "rank3")


def test_the_journal_is_whole_when_the_program_ends_without_closing_it(tmp_path: Path) -> None:
    script = "import hpcml_client; hpcml_client.connect().metric('loss', 1.0); raise SystemExit(3)"

    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, "HPCML_RUN_DIR": str(tmp_path)}, check=False
    )

    assert done.returncode == 3
    assert len(_records(tmp_path)) == 1
    assert not any(map(is_cut_short, (tmp_path / "journal").iterdir()))


def test_an_unknown_framework_is_refused() -> None:
    with hpcml_client.connect({}) as run, pytest.raises(ValueError, match="knows torch, tensorflow, jax"):
        run.apply_precision("mxnet")  # type: ignore[call-overload]
