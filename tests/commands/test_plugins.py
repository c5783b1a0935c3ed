"""What packages add to hpcml: found by their entry points, loaded when named, and broken alone where broken."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcml import plugins
from hpcml.errors import ConfigError
from hpcml.interop.exporters import exporter_of
from hpcml.schedulers.description import Scheduler
from hpcml.schedulers.names import cluster_schedulers
from hpcml.schedulers.registry import BACKENDS, backend_of
from tests.cli.command_line import Hpcml

GOOD = "from hpcml.interop.exporters import Exporter\nIT = Exporter(write_folder=print, contract=1)\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path, in which packages are installed."""
    folder = tmp_path / "site"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(site: Path, package: str, group: str, name: str, code: str) -> None:
    """Leave a package whose module has *code* and, as *name* in *group*, its object IT."""
    module = package.replace("-", "_")
    (site / f"{module}.py").write_text(code)
    info = site / f"{module}-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:IT\n")


def test_what_is_installed_is_listed_and_loaded_when_it_is_named(site: Path) -> None:
    install(site, "plug-good", plugins.EXPORTERS, "good", f"open({str(site / 'loaded')!r}, 'w').close()\n{GOOD}")

    assert plugins.names(plugins.EXPORTERS) == ["good"]
    assert [str(one) for one in plugins.installed(plugins.EXPORTERS)] == ["exporter good of package plug-good 0.1"]
    assert not (site / "loaded").exists()
    assert exporter_of("good", ours=()).write_folder is print
    assert (site / "loaded").exists()


@pytest.mark.parametrize(
    ("package", "code", "says"),
    [
        ("plug-import", "import nothing_of_this_name\n", "cannot be loaded: ModuleNotFoundError: No module named"),
        ("plug-raises", "raise RuntimeError('first\\nsecond')\n", "cannot be loaded: RuntimeError: first second"),
        ("plug-exits", "raise SystemExit(3)\n", "cannot be loaded: SystemExit: 3"),
        ("plug-lacks", "", "cannot be loaded: AttributeError: module 'plug_lacks' has no attribute 'IT'"),
        ("plug-other", "IT = 3\n", "is no hpcml.interop.exporters.Exporter, but int"),
        ("plug-old", GOOD.replace("contract=1", "contract=0"), "was written for version 0 of hpcml's contract"),
        ("plug-mute", GOOD.replace(", contract=1", ""), "does not say for which of hpcml's contract"),
        ("plug-empty", GOOD.replace("write_folder=print, ", ""), "cannot be loaded: ConfigError: an exporter has"),
    ],
)  # fmt: skip
def test_what_is_broken_is_one_line_that_names_its_package(site: Path, package: str, code: str, says: str) -> None:
    install(site, package, plugins.EXPORTERS, "bad", code)

    with pytest.raises(ConfigError) as refused:
        exporter_of("bad", ours=())

    assert str(refused.value).startswith(f"exporter bad of package {package} 0.1 ")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_name_of_one_of_ours_is_not_taken_over(site: Path) -> None:
    code = "raise SystemExit('loaded though ours has the name')"
    install(site, "plug-slurm", plugins.SCHEDULERS, "slurm", code)

    assert backend_of("slurm") is BACKENDS["slurm"]
    assert cluster_schedulers() == ("slurm", "pbs", "lsf", "flux")
    with pytest.raises(ConfigError, match=r"slurm of package plug-slurm 0\.1 has the name of hpcml's own, which"):
        plugins.load(plugins.SCHEDULERS, "slurm", Scheduler, ours=BACKENDS)


def test_two_packages_with_one_name_are_both_left_alone(site: Path) -> None:
    install(site, "plug-one", plugins.EXPORTERS, "same", GOOD)
    install(site, "plug-two", plugins.EXPORTERS, "same", GOOD)

    with pytest.raises(ConfigError, match=r"same: plug-one 0\.1 and plug-two 0\.1 both add one of that name"):
        exporter_of("same", ours=())


def test_a_name_that_nothing_has_is_told_with_those_that_there_are(site: Path) -> None:
    install(site, "plug-good", plugins.EXPORTERS, "good", GOOD)

    with pytest.raises(ConfigError, match="there is no exporter 'nothing': choose csv, good, or install"):
        exporter_of("nothing", ours=["csv"])
    with pytest.raises(ConfigError, match="there is no sampler 'nothing': install the package that adds it"):
        plugins.load(plugins.SAMPLERS, "nothing", object, ours=())


def test_broken_packages_break_nothing_but_what_names_them(
    site: Path, hpcml_environ: dict[str, str], tmp_path: Path
) -> None:
    for group, name in ((plugins.SCHEDULERS, "tsp"), (plugins.SAMPLERS, "load"), (plugins.EXPORTERS, "jsonl")):
        install(site, f"plug-{name}", group, name, "import nothing_of_this_name\n")
    path = os.pathsep.join([str(site), hpcml_environ.get("PYTHONPATH", "")])
    hpcml = Hpcml(environ={**hpcml_environ, "PYTHONPATH": path}, cwd=tmp_path)

    fine = [hpcml("run", "-n", "workload.command=true"), hpcml("status"), hpcml("runs"), hpcml("cluster", "list")]
    named = [
        hpcml("run", "-n", "workload.command=true", "cluster.scheduler=tsp"),
        hpcml("run", "-n", "workload.command=true", "telemetry.samplers=[load]"),
        hpcml("export", "--to", "jsonl"),
    ]
    doctor = hpcml("doctor")

    assert [done.returncode for done in fine] == [0] * 4, [done.stderr for done in fine]
    assert [done.returncode for done in named] == [2] * 3
    for done, word in zip(named, ("scheduler tsp", "sampler load", "exporter jsonl"), strict=True):
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"hpcml: {word} of package plug-{word.split()[1]} 0.1 cannot be loaded: Module")
        assert f"{word} of package" in doctor.stdout
    assert doctor.returncode == 0, doctor.stdout
