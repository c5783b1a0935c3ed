"""Scripts that use a framework in a process of their own: its switches are global, and its threads forbid forks."""

from __future__ import annotations

import json
import os
from typing import Any

from tests import warm_frameworks

PROBES = """
import json
from hpcml_train.{framework} import arithmetic, probe
from hpcml_client.formats import name_precision
from hpcml_train.{framework}.arithmetic import Arithmetic
from hpcml_train.{framework}.probe import measure_precision
told = {{"proofs": {{}}}}
for name in ("fp32", "tf32", "fp64", "amp_fp16", "amp_bf16", "bf16", "fp16"):
    told["proofs"][name] = measure_precision(Arithmetic(name, numerics="native"))
told["framework"] = probe.describe_framework(Arithmetic("fp32"))
def refused(*words, **more):
    try:
        Arithmetic(*words, **more)
    except ValueError as error:
        return str(error)
told["refused"] = [
    refused("tf32"), refused("fp8_e4m3"), refused("fp32", numerics="emulated"), refused("int8"),
]
try:
    arithmetic.choose_device("cuda", 0)
except RuntimeError as error:
    told["no_gpu"] = str(error)
"""


# What hpcml_train.start sets, which TensorFlow reads when it is imported
AS_RECIPES = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "1", "CUDA_VISIBLE_DEVICES": ""}


def run_script(script: str, framework: str, **variables: str) -> dict[str, Any]:
    """Run *script*, which uses *framework*, and return what it prints last, as JSON."""
    environ = {**os.environ, **AS_RECIPES, "OMP_NUM_THREADS": "1", **variables}
    done = warm_frameworks.run(script, framework=framework, environ=environ, is_strict=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
