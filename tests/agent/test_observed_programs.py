"""Programs without a line of hpcml's, observed by ``precision.observe=always``: real agents, real torch."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcml.model.records import RunRecord
from hpcml.runs.layout import RunDir
from hpcml.store.ingest import ingest_run
from hpcml.store.opening import open_store
from hpcml.store.query import find_runs
from tests.agent.node import MakeRun, agent, told

pytest.importorskip("torch")
pytestmark = pytest.mark.torch
