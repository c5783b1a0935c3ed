"""`site`: each scheduler in turn, `served`: those with a server; a new one is a word here and a function of `sites`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.double.double import Double
from tests.cluster.pbs.double import PbsDouble
from tests.schedulers.conformance import sites
from tests.schedulers.conformance.kit import Site
from tests.schedulers.slurm.conftest import account, slurm  # noqa: F401 - fixtures

SERVED = (pytest.param("slurm", marks=pytest.mark.slurm), "pbs", *sites.LSF_AND_FLUX)


@pytest.fixture(params=("local", *SERVED))
def site(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """Any site: what is asked of it holds for this machine, too."""
    yield from _opened(request, tmp_path, monkeypatch)


@pytest.fixture(params=SERVED)
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site with a server that may be away, nodes, ids and walltimes of its own: any but this machine."""
    yield from _opened(request, tmp_path, monkeypatch)


def _opened(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder, home = tmp_path / "a user's folder", tmp_path / "home"
    folder.mkdir()
    home.mkdir()
    if request.param == "slurm":
        the_account = request.getfixturevalue("slurm")
        yield sites.slurm_site(the_account.new_folder(), the_account)
        return
    monkeypatch.setenv("HOME", str(home))
    if request.param == "local":
        yield sites.local_site(folder)
        return
    double = PbsDouble(tmp_path / "pbs") if request.param == "pbs" else Double(request.param, tmp_path / "double")
    double.start()
    monkeypatch.setenv("PATH", f"{double.bin}:/usr/local/bin:/usr/bin:/bin")
    makes = {"pbs": sites.pbs_site, "lsf": sites.lsf_site, "flux": sites.flux_site}
    yield makes[request.param](folder, double)  # type: ignore[operator]
    double.stop()
