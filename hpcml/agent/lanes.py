"""Packed runs on MIG slices side by side: a lane for each slice of the job, and in each an agent of its own.

A process sees one MIG slice (CUDA), so that several runs of a pack may compute at once. The agent of the job starts
itself once for each slice, with that slice alone in CUDA_VISIBLE_DEVICES and HPCML_LANE=NUMBER/COUNT; each takes every
COUNT-th run. Signals of the job are handed on to all.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from hpcml.agent.assignment import LANE, Element
from hpcml.agent.signals import Inbox
from hpcml.errors import HpcmlError
from hpcml.runs.manifest import read_to_execute

_DEVICES = "CUDA_VISIBLE_DEVICES"
_LOOK_S = 5.0


def slices_of(element: Element, environ: Mapping[str, str]) -> Sequence[str]:
    """Return the slices on which the runs of *element* are carried out side by side; none: one after the other.

    Raises `HpcmlError` as `read_to_execute` does.
    """
    if len(element.sources) < 2 or LANE in environ:
        return ()
    devices = [name for name in environ.get(_DEVICES, "").split(",") if name]
    if len(devices) < 2:
        return ()
    with suppress(HpcmlError):  # which the run's own turn tells
        if read_to_execute(element.sources[0]).run.resources.mig is None:
            return ()
    return devices[: len(element.sources)]


def carry_out_beside(words: Sequence[str], slices: Sequence[str], inbox: Inbox, environ: Mapping[str, str]) -> int:
    """Start an agent with *words* on each of *slices*, hand signals on, and return the first status that is not 0."""
    agents = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "hpcml.agent.main", *words],
            env={**environ, _DEVICES: device, LANE: f"{number}/{len(slices)}"},
            start_new_session=True,  # signals come from here alone, once each
        )
        for number, device in enumerate(slices)
    ]
    while any(agent.poll() is None for agent in agents):
        for number in inbox.wait(_LOOK_S):
            for agent in agents:
                agent.send_signal(number)
    return next((agent.returncode for agent in agents if agent.returncode != 0), 0)
