from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml_client import tensorflow_precision

# Answers as TensorFlow 2 does for what is asked here, and writes down what was set.
_FAKE = """
import json, os, types

def _note(**what):
    with open(os.environ["FAKE_TF_LOG"], "a") as file:
        file.write(json.dumps(what) + "\\n")

__version__ = "2.21.0"
_state = {"tf32": True}
def _enable(on):
    _state["tf32"] = on
    _note(tf32=on)
experimental = types.SimpleNamespace(
    enable_tensor_float_32_execution=_enable,
    tensor_float_32_execution_enabled=lambda: _state["tf32"],
)
config = types.SimpleNamespace(experimental=experimental, list_physical_devices=lambda kind: [])
keras = types.SimpleNamespace(
    mixed_precision=types.SimpleNamespace(set_global_policy=lambda name: _note(policy=name))
)
"""


@pytest.mark.parametrize(
    ("precision", "tf32", "policy"),
    [("fp32", False, "float32"), ("tf32", True, "float32"), ("amp_fp16", False, "mixed_float16")],
)
def test_both_switches_are_set_for_every_precision(
    tmp_path: Path,
    precision: str,
    tf32: bool,  # noqa: FBT001
    policy: str,
) -> None:
    (tmp_path / "tensorflow.py").write_text(_FAKE)
    env = {**os.environ, "FAKE_TF_LOG": str(tmp_path / "log"), "HPCML_PRECISION": precision}
    env |= {"HPCML_RUN_DIR": str(tmp_path / "run"), "PYTHONPATH": str(tmp_path)}
    script = "import tensorflow, hpcml_client; print(hpcml_client.connect().apply_precision().policy)"

    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)

    log = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert log == [{"tf32": tf32}, {"policy": policy}]
    assert done.stdout.strip() == policy
    (journal,) = (tmp_path / "run" / "journal").iterdir()
    assert '"tf32_execution":' + str(tf32).lower() in journal.read_text()


def test_emulation_and_fp8_are_refused_in_tensorflow() -> None:
    with pytest.raises(ValueError, match="emulates in torch alone"):
        tensorflow_precision.apply("tf32", numerics="emulated")
    with pytest.raises(ValueError, match="is refused in TensorFlow"):
        tensorflow_precision.apply("fp8_e4m3", numerics="native")
