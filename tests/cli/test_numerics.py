"""What a command takes of the machine when it loads NumPy and SciPy, seen in a process that loads them as it does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, os, sys
before = dict(os.environ)
from hpcml.cli.numerics import spare
spare()
from scipy import linalg, special
threads = int(open("/proc/self/status").read().partition("Threads:")[2].split()[0])
import numpy.testing
loaded = "numpy.f2py.crackfortran" in sys.modules
import numpy.f2py
print(json.dumps({
    "threads": threads, "environ": dict(os.environ) == before, "f2py": loaded,
    "quantile": special.stdtrit(2.0, 0.975), "used": numpy.f2py.get_include(),
    "close": numpy.testing.assert_allclose(1, 1),
}))
"""


def loaded(**environ: str) -> Any:  # noqa: ANN401 - JSON
    own = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    words = [sys.executable, "-P", "-c", PROGRAM]
    return json.loads(subprocess.run(words, capture_output=True, check=True, timeout=60, env=own | environ).stdout)


def test_libraries_of_numbers_start_no_threads_and_load_nothing_that_is_not_used() -> None:
    told = loaded()

    assert told["threads"] == 1
    assert not told["f2py"]
    assert told["environ"]  # what programs of the user's inherit
    assert told["quantile"] == pytest.approx(4.302652729911275)
    assert told["used"]  # loaded then


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="OpenBLAS starts one thread on one core")
def test_a_number_of_threads_that_its_user_set_counts() -> None:
    told = loaded(OPENBLAS_NUM_THREADS="2")

    assert told["threads"] > 1
    assert told["environ"]
