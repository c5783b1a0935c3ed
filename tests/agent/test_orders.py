"""What an agent reads of a run.json before the start says the same as all of it, and what is not ours is read whole."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcml.codec import encode
from hpcml.errors import ConfigError, HpcmlError
from hpcml.runs.layout import RunDir
from hpcml.runs.manifest import read_manifest
from hpcml.runs.orders import StartSettings, read_orders
from tests.agent.node import MakeRun, agent, told
from tests.conftest import ComposeOne

ROOT = Path(__file__).resolve().parents[2]


def rewrite(run_dir: RunDir, *, version: str | None = None, **settings: Any) -> None:  # noqa: ANN401 - JSON
    raw = json.loads(run_dir.manifest.read_text())
    raw["run"] |= settings
    if version is not None:
        raw["provenance"]["hpcml_version"] = version
    run_dir.manifest.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    "overrides",
    [
        ["workload.command='torchrun train.py'", "telemetry.samplers=[a]", "telemetry.interval=200ms"],
        ["workload.metrics=[{pattern: 'loss (?P<value>\\S+)', name: loss}]", "workload.metrics_from=[csv]"],
        ["cluster=karolina", "resources.account=A", "schedule.notice=5m"],
        ["profile=nsys", "profile.ranks=[0,3]", "precision.observe=always"],
        ["model=mnist_cnn", "telemetry.enabled=false"],
    ],
)
def test_the_settings_of_a_start_are_those_of_the_run(overrides: list[str], compose_one: ComposeOne) -> None:
    run = compose_one(*overrides)

    assert StartSettings.written(json.loads(json.dumps(encode(run)))) == StartSettings.of(run)


def test_the_orders_are_those_of_the_whole_manifest(make_run: MakeRun) -> None:
    run_dir = make_run("pass", "schedule.notice=5m")

    orders, whole = read_orders(run_dir.manifest), read_manifest(run_dir.manifest)

    assert "manifest" not in vars(orders)
    assert (orders.uid, orders.plan, orders.code) == (whole.uid, whole.plan, whole.provenance.code)
    assert orders.settings == StartSettings.of(whole.run)
    assert orders.manifest == whole


@pytest.mark.parametrize("settings", [{"of_tomorrow": 1}, {"seed": -1}, {"cluster": {}}])
def test_what_another_version_wrote_is_refused_before_the_start(make_run: MakeRun, settings: dict[str, object]) -> None:
    run_dir = make_run("pass")
    rewrite(run_dir, version="0.0.9", **settings)

    done = agent(str(run_dir.path))

    assert done.returncode == 2
    assert str(run_dir.manifest) in done.stderr
    assert not run_dir.journals.exists() or not list(run_dir.journals.iterdir())


@pytest.mark.parametrize("settings", [{"cluster": {}}, {"resources": {"nodes": "two"}}, {"telemetry": None}])
def test_orders_that_cannot_be_read_are_refused_as_the_whole_is(make_run: MakeRun, settings: dict[str, object]) -> None:
    run_dir = make_run("pass")
    rewrite(run_dir, **settings)

    with pytest.raises(HpcmlError, match=r"run\.json: "):
        read_orders(run_dir.manifest)


def test_another_version_is_read_as_ours_where_it_says_the_same(make_run: MakeRun) -> None:
    run_dir = make_run("pass")
    rewrite(run_dir, version="0.0.9")

    assert read_orders(run_dir.manifest).settings == StartSettings.of(read_manifest(run_dir.manifest).run)


def test_a_webhook_is_told_nothing_of_a_run_that_is_not_valid(make_run: MakeRun, tmp_path: Path) -> None:
    run_dir = make_run("pass", "schedule.notify=run", f"schedule.webhook_file={tmp_path}/url")
    rewrite(run_dir, seed=-1)
    with pytest.raises(ConfigError):
        _ = read_orders(run_dir.manifest).manifest

    done = agent(str(run_dir.path))

    assert done.returncode == 0
    assert [end["state"] for end in told(run_dir, "attempt_ended")] == ["COMPLETED"]
    assert ["seed=-1" in failed["error"] for failed in told(run_dir, "notify_failed")] == [True]


@pytest.mark.parametrize(("code", "state", "status"), [("pass", "COMPLETED", 0), ("raise SystemExit(3)", "FAILED", 3)])
def test_an_end_is_told_where_what_it_needs_cannot_be_loaded(
    make_run: MakeRun, tmp_path: Path, code: str, state: str, status: int
) -> None:
    run_dir = make_run(code)
    for package in ("hpcml", "hpcml_client"):
        shutil.copytree(ROOT / package, tmp_path / "broken" / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "broken" / "hpcml" / "agent" / "ending.py").unlink()

    done = agent(str(run_dir.path), PYTHONPATH=str(tmp_path / "broken"))

    assert done.returncode == status
    assert [end["state"] for end in told(run_dir, "attempt_ended")] == [state]
    assert "what the end needs" in [trouble["what"] for trouble in told(run_dir, "agent_trouble")]
