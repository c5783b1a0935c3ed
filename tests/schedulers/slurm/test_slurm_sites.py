"""The job scripts of the Slurm profiles, put to a real slurmctld that looks like each site: ``sbatch --test-only``.

Partitions, nodes, cores, memory, GPUs and their types are those of the profile; nodes are powered down, as a cloud's,
and nothing is started. What a profile does not say (features, licences, limits of the accounts) is not tried.
"""

from __future__ import annotations

import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hpcml.config.profiles import Profile, get_profile, list_profiles
from hpcml.model.cluster import SchedulerName
from hpcml.units import parse_memory_mb
from hpcml.walltime import parse_walltime_s
from tests.cluster.slurm.account import Account
from tests.schedulers.test_golden_scripts import submission

pytestmark = pytest.mark.slurm
_FROM_ELSEWHERE = Path("/nowhere")
SITES = sorted(
    profile.cluster.name
    for profile in list_profiles(_FROM_ELSEWHERE)
    if profile.cluster.scheduler is SchedulerName.slurm and profile.cluster.name != "slurm"
)


def slurm_conf(profile: Profile, script: str, root: Path, munge: Path, port: int) -> str:
    """Return the configuration of a slurmctld that could take *script*, with one kind of nodes."""
    site = profile.cluster
    constraints = re.findall(r"^#SBATCH --constraint=\"?([\w|&]+)", script, flags=re.MULTILINE)
    types = f"{site.gpu_type}:" if site.gpu_type else ""
    count = 4 if site.gpus_per_node is None else site.gpus_per_node  # where the profile does not know
    gpus = f" Gres=gpu:{types}{count}" if count else ""
    features = f" Feature={','.join(re.split('[|&]', constraints[0]))}" if constraints else ""
    memory = parse_memory_mb(site.mem_per_node) if site.mem_per_node else 1_000_000
    queues = {name: queue.max_walltime for name, queue in site.queues.items()} or {"batch": None}
    partitions = "\n".join(
        f"PartitionName={name} Nodes=n[1-9] MaxTime={_minutes(limit)} Default={'NO' if number else 'YES'}"
        for number, (name, limit) in enumerate(queues.items())
    )
    return f"""\
ClusterName=alike
SlurmctldHost=localhost(127.0.0.1)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=slurm
AuthType=auth/munge
AuthInfo=socket={munge}
ProctrackType=proctrack/linuxproc
SlurmctldPidFile={root}/pid
SlurmctldPort={port}
SlurmctldLogFile={root}/log
StateSaveLocation={root}/state
EnforcePartLimits=ALL
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
ResumeProgram=/bin/true
SuspendProgram=/bin/true
SuspendTime=600
NodeName=n[1-9] CPUs={site.cores_per_node or 64} RealMemory={memory}{gpus}{features} State=CLOUD
{partitions}
"""


def _minutes(limit: str | None) -> str:
    return "UNLIMITED" if limit is None else str(parse_walltime_s(limit) // 60)


@contextmanager
def controller(profile: Profile, script: str, account: Account) -> Iterator[Path]:
    """Run a slurmctld that looks like the site; yield its slurm.conf."""
    root = account.new_folder()
    (root / "state").mkdir()
    conf = root / "slurm.conf"
    port = _free_port()
    conf.write_text(slurm_conf(profile, script, root, account.cluster.root / "munge" / "socket", port))
    subprocess.run(["chown", "-R", "slurm", str(root)], check=True)
    root.chmod(0o755)
    process = subprocess.Popen(
        ["setpriv", "--reuid=slurm", "--regid=slurm", "--clear-groups", "slurmctld", "-D", "-c"],
        env={**account.cluster.environ, "SLURM_CONF": str(conf)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until = time.monotonic() + 120
        while not _answers(port):
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < until, (root / "log").read_text()
            time.sleep(0.1)
        yield conf
    finally:
        process.kill()  # asked to end, it waits for nodes that are none
        process.wait(timeout=120)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_slurm_that_looks_like_the_site_takes_the_profiles_script(
    account: Account, folder: Path, tmp_path: Path
) -> None:
    for name in SITES:
        profile = get_profile(name, _FROM_ELSEWHERE)
        script = submission(name, tmp_path).partition("\n")[2].replace("/scratch/me/hpcml", str(folder))
        script = re.sub(r"^(#SBATCH --chdir)=.*$", rf"\1={folder}", script, flags=re.MULTILINE)

        with controller(profile, script, account) as conf:
            environ = {"SLURM_CONF": str(conf)}
            taken = account.run(["sbatch", "--test-only"], cwd=folder, environ=environ, input=script.encode())
            more = script.replace("--nodes=1", "--nodes=10")
            refused = account.run(["sbatch", "--test-only"], cwd=folder, environ=environ, input=more.encode())

        said = f"{name}: {taken.stderr.decode()}"
        assert taken.returncode == 0, said
        assert re.search(r"Job \d+ to start at \S+ using \d+ processors on nodes n\d in partition", said), said
        assert refused.returncode != 0, name  # it has nine nodes: so the answer was one
