"""What the files of the Slurm test cluster say: three nodes on one machine, four pretended GPUs, full accounting."""

from __future__ import annotations

from pathlib import Path

ACCOUNT = "proj1"
NODES = {"gpu1": 27001, "gpu2": 27002, "cpu1": 27003}  # name -> port of its slurmd
CTLD_PORT = 26817
DBD_PORT = 26819
GPUS = 4


def slurm_conf(root: Path, *, host: str, cgroup: bool) -> str:
    """Return slurm.conf; without *cgroup* no memory limit and no GPU is enforced, all else is the same."""
    return f"""\
ClusterName=hpcml
SlurmctldHost=localhost(127.0.0.1)
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=slurm
AuthType=auth/munge
# A requeued job waits for old credentials to expire: 120 s by default
AuthInfo=socket={root}/munge/socket,cred_expire=5
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/{"cgroup" if cgroup else "linuxproc"}
TaskPlugin=task/{"cgroup" if cgroup else "none"}
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldPort={CTLD_PORT}
SlurmctldLogFile={root}/log/slurmctld.log
StateSaveLocation={root}/state
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmdSpoolDir={root}/spool/%n
SlurmdLogFile={root}/log/slurmd-%n.log
# Three nodes are one machine: each needs a place of its own for the files of PMIx, which is this (man slurm.conf)
TmpFS={root}/pmix/%n
# Two real cores stand for 24
SlurmdParameters=config_overrides
KillWait=5
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=20
ReturnToService=2
# Refuses what no node could ever run; without it such a job is accepted and waits for ever
EnforcePartLimits=ALL
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,bf_interval=5,sched_min_interval=0,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
MaxArraySize=1001
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={DBD_PORT}
# With munge this is where munge's socket is (man slurm.conf)
AccountingStoragePass={root}/munge/socket
AccountingStorageTRES=gres/gpu,gres/gpu:v100
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=2
GresTypes=gpu
{_nodes(host)}
PartitionName=DEFAULT MaxTime=48:00:00 DefaultTime=01:00:00 DefMemPerCPU=200 State=UP
PartitionName=qcpu Nodes=cpu1 Default=YES PriorityTier=10
PartitionName=qgpu Nodes=gpu1,gpu2 PriorityTier=10
PartitionName=qgpu_exp Nodes=gpu1,gpu2 MaxTime=01:00:00 DefaultTime=00:10:00 PriorityTier=100 PreemptMode=OFF
"""


def _nodes(host: str) -> str:
    common = f"NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 State=UNKNOWN"
    return "\n".join(
        f"NodeName={name} Port={port} {common}" + (f" Gres=gpu:v100:{GPUS}" if name.startswith("gpu") else "")
        for name, port in NODES.items()
    )


def gres_conf(root: Path) -> str:
    """Return gres.conf; both GPU nodes show the same device files."""
    return f"AutoDetect=off\nNodeName=gpu1,gpu2 Name=gpu Type=v100 File={root}/dev/gpu[0-{GPUS - 1}]\n"


def cgroup_conf() -> str:
    """Return cgroup.conf."""
    return """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint=/sys/fs/cgroup
ConstrainCores=no
ConstrainDevices=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
"""


def slurmdbd_conf(root: Path) -> str:
    """Return slurmdbd.conf; the database knows the user slurm by the socket, so there is no password."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={DBD_PORT}
CommunicationParameters=NoInAddrAny
SlurmUser=slurm
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
"""
