from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import Hpcml
from tests.interop.exchanging import EVIL, ODD, OPEN, PLAIN, goes_on, real
from tests.store.building import T0

pytestmark = pytest.mark.filterwarnings("default")  # TensorBoard's own


def read(logdir: Path, experiment: str, uid: str) -> Any:  # noqa: ANN401 - of a library without types
    accumulator = real("tensorboard.backend.event_processing.event_accumulator")
    found = accumulator.EventAccumulator(str(logdir / experiment / uid), size_guidance={accumulator.SCALARS: 0})
    found.Reload()
    return found


def test_tensorboard_reads_every_curve_with_its_steps_and_times(hpcml: Hpcml) -> None:
    done = hpcml("export", "--to", "tensorboard", "-o", "logs")
    assert done.returncode == 0, done.stderr

    plain = read(hpcml.cwd / "logs", "default", PLAIN)
    assert sorted(plain.Tags()["scalars"]) == ["loss", "val/accuracy"]
    loss = plain.Scalars("loss")
    assert [event.step for event in loss] == [0, 1, 2, 3, 4]
    assert [event.value for event in loss] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], rel=1e-6)  # 32 bits
    assert [event.wall_time for event in loss] == pytest.approx([T0 + 1 + step / 4 for step in range(5)])
    odd = read(hpcml.cwd / "logs", "other", ODD)
    values = [event.value for event in odd.Scalars(EVIL)]
    assert values[0] == 1.5
    assert math.isnan(values[1])
    assert values[2:] == [math.inf, -math.inf, math.inf]  # 1e300 is more than 32 bits hold
    assert [event.step for event in odd.Scalars("loss")] == [2**60]
    assert read(hpcml.cwd / "logs", "default", OPEN).Scalars("loss")[0].value == 2.0


def test_settings_and_the_end_are_in_the_hparams_tab(hpcml: Hpcml) -> None:
    metadata = real("tensorboard.plugins.hparams.metadata")
    hpcml("export", "--to", "tensorboard", "-o", "logs")

    content = read(hpcml.cwd / "logs", "default", PLAIN).summary_metadata
    start = metadata.parse_session_start_info_plugin_data(content[metadata.SESSION_START_INFO_TAG].plugin_data.content)
    assert start.hparams["training.steps"].number_value == 300
    assert start.hparams["precision.name"].string_value == "tf32"
    assert start.hparams["training.deterministic"].bool_value is True
    end = metadata.parse_session_end_info_plugin_data(content[metadata.SESSION_END_INFO_TAG].plugin_data.content)
    assert end.end_time_secs == T0 + 10
    still_open = read(hpcml.cwd / "logs", "default", OPEN).summary_metadata
    assert metadata.SESSION_END_INFO_TAG not in still_open


def test_exported_again_it_has_what_came_since(hpcml: Hpcml) -> None:
    for until in (0, 7):
        goes_on(hpcml.home, until=until) if until else None
        assert hpcml("export", "--to", "tensorboard", "-o", "logs").returncode == 0

    assert len(read(hpcml.cwd / "logs", "default", OPEN).Scalars("loss")) == 8
    assert len(list((hpcml.cwd / "logs" / "default" / OPEN).iterdir())) == 1
