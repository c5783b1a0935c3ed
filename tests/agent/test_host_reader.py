import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcml.agent.telemetry.backoff import Backoff
from hpcml.agent.telemetry.host import HostReader, JobGroup, find_job_group


def test_the_tree_of_processes_has_what_ended_children_used() -> None:
    reader = HostReader(root=os.getpid(), group=None)
    before = reader.read(0.0)
    work = "import time\nfile = open('/dev/zero', 'rb')\nwhile time.process_time() < 0.5: file.read(1 << 20)"
    subprocess.run([sys.executable, "-c", work], check=True)
    after = reader.read(0.1, whatever_it_takes=True)

    assert after["cpu_s"] - before["cpu_s"] >= 0.45
    assert after["read_calls_mb"] - before["read_calls_mb"] >= 1
    assert after["memory_mb"] > 1
    assert reader.cpu_from == reader.memory_from == "processes"


def test_a_process_that_is_gone_is_a_reason_and_no_error() -> None:
    done = subprocess.Popen(["true"])
    done.wait()
    reader = HostReader(root=done.pid, group=None)

    assert "cpu_s" not in reader.read(0.0)
    assert "NoSuchProcess" in reader.refused["processes"]


def package(folder: Path, name: str, energy_uj: int) -> Path:
    zone = folder / name
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("999999\n")
    (zone / "energy_uj").write_text(f"{energy_uj}\n")
    return zone


def test_a_processors_counter_goes_on_where_it_wraps(tmp_path: Path) -> None:
    zone = package(tmp_path, "intel-rapl:0", 900_000)
    (package(tmp_path, "intel-rapl:0:0", 5) / "name").write_text("core\n")  # in the package
    reader = HostReader(root=os.getpid(), group=None, powercap=tmp_path)
    first = reader.read(0.0)
    (zone / "energy_uj").write_text("100000\n")
    second = reader.read(1.0)

    assert (first["package0_j"], second["package0_j"]) == (0.0, pytest.approx(0.2))
    assert "package1_j" not in second


def test_the_counter_of_the_whole_platform_is_none_of_a_processor(tmp_path: Path) -> None:
    for number, name in enumerate(["psys", "package-0", "package-1"]):
        (package(tmp_path, f"intel-rapl:{number}", 0) / "name").write_text(f"{name}\n")
    reader = HostReader(root=os.getpid(), group=None, powercap=tmp_path)
    reader.read(0.0)
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("200000\n")

    values = reader.read(1.0)

    assert {key: value for key, value in values.items() if key.startswith("package")} == {
        "package0_j": pytest.approx(0.2),
        "package1_j": 0.0,
    }


def test_a_counter_that_is_not_readable_is_a_reason(tmp_path: Path) -> None:
    (package(tmp_path, "intel-rapl:0", 0) / "energy_uj").unlink()
    reader = HostReader(root=os.getpid(), group=None, powercap=tmp_path)

    assert "package0_j" not in reader.read(0.0)
    assert "energy_uj" in reader.refused["package_j"]


def test_the_network_is_read_on_request_alone(tmp_path: Path) -> None:
    port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "port_rcv_data").write_text("262144\n")
    (port / "port_xmit_data").write_text("524288\n")

    values = HostReader(root=os.getpid(), group=None, network=True, infiniband=tmp_path).read(0.0)

    assert (values["ib_received_mb"], values["ib_sent_mb"]) == (1.0, 2.0)
    assert "net_received_mb" in values
    assert "net_received_mb" not in HostReader(root=os.getpid(), group=None).read(0.0)


def group_of(tmp_path: Path, line: str, files: dict[str, str], job_id: str | None) -> JobGroup | None:
    ours = tmp_path / "cgroup"
    ours.write_text(line + "\n")
    for name, text in files.items():
        file = tmp_path / "mounts" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return find_job_group(job_id, ours=ours, mounts=tmp_path / "mounts")


def test_slurms_group_of_version_2_is_that_of_the_whole_job(tmp_path: Path) -> None:
    job = "system.slice/slurmstepd.scope/job_4711"
    files = {
        f"{job}/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        f"{job}/memory.current": str(300 * 2**20),
        f"{job}/memory.stat": f"anon 1\ninactive_file {100 * 2**20}\n",
    }
    group = group_of(tmp_path, f"0::/{job}/step_0/user/task_0", files, "4711")

    assert group is not None
    assert (group.cpu_s(), group.memory_mb()) == (2.5, 200.0)
    reader = HostReader(root=os.getpid(), group=group)
    assert reader.read(0.0)["cpu_s"] == 2.5  # not that of the tree
    assert (reader.cpu_from, reader.memory_from) == ("cgroup", "cgroup")


def test_the_groups_of_version_1_lie_with_each_controller(tmp_path: Path) -> None:
    files = {
        "cpuacct/pbs_jobs/240[0].server/cpuacct.usage": "1500000000\n",
        "memory/pbs_jobs/240[0].server/memory.usage_in_bytes": str(30 * 2**20),
        "memory/pbs_jobs/240[0].server/memory.stat": f"total_inactive_file {10 * 2**20}\n",
    }
    lines = "5:cpuacct,cpu:/pbs_jobs/240[0].server\n4:memory:/pbs_jobs/240[0].server\n0::/init.scope"
    group = group_of(tmp_path, lines, files, "240[0].server")

    assert group is not None
    assert (group.version, group.cpu_s(), group.memory_mb()) == (1, 1.5, 20.0)


@pytest.mark.parametrize(
    ("line", "job_id"), [("0::/user.slice/user-4711.slice", None), ("0::/", "4711"), ("0::/x/job_14711", "4711")]
)
def test_a_group_that_is_not_the_jobs_is_not_taken_for_it(tmp_path: Path, line: str, job_id: str | None) -> None:
    assert group_of(tmp_path, line, {}, job_id) is None


@pytest.mark.parametrize(
    ("group", "job_id"),
    [
        ("user.slice/user-1001.slice/session-12.scope", "12"),
        ("user.slice/user-1001.slice/session-12.scope", "1001.server"),
        ("docker/0dc7e57656f2f0df39a9d6275d3c0512", "0.pbs"),  # a cluster in containers, whose jobs are its first
        ("kubepods/burstable/pod3c0512-4711-9d6a", "4711"),
        ("x/3c/job", "3"),
    ],
)
def test_a_number_in_the_name_of_another_group_is_not_the_jobs(tmp_path: Path, group: str, job_id: str) -> None:
    files = {f"{group}/memory.current": str(9 * 2**30), f"{group}/cpu.stat": "usage_usec 1\n"}

    assert group_of(tmp_path, f"0::/{group}", files, job_id) is None


def test_a_slow_call_backs_off_to_one_in_sixty_four_and_comes_back_at_once() -> None:
    pace = Backoff()
    used = []
    for tick in range(200):
        if pace.is_due():
            used.append(tick)
            pace.took(0.03)

    assert used == [0, 2, 6, 14, 30, 62, 126, 190]
    pace.took(0.001)
    assert pace.is_due()
