"""How the double runs a job: a real process with PBS's environment, its output files, its signals and its end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

from tests.cluster.pbs.model import NODES, Job


def environment(job: Job, state: Path) -> dict[str, str]:
    """Return what a job finds; a script's login shell adds to it, the form with -- has nothing but this."""
    spec, first = job.spec, job.placed[0][1]
    cpus = str(first.need.get("ncpus", 1))
    said = {
        "ENVIRONMENT": "BATCH", "HOME": spec.home, "LOGNAME": "hpcuser", "USER": "hpcuser", "NCPUS": cpus,
        "OMP_NUM_THREADS": cpus, "PATH": "/bin:/usr/bin", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_JOBCOOKIE": "0" * 32,
        "PBS_JOBDIR": spec.home, "PBS_JOBID": job.id, "PBS_JOBNAME": spec.name, "PBS_MOMPORT": "15003",
        "PBS_NODEFILE": str(state / "aux" / job.id), "PBS_NODENUM": "0", "PBS_QUEUE": spec.queue, "PBS_TASKNUM": "1",
        "SHELL": "/bin/sh", "TMPDIR": str(state / "tmp" / f"pbs.{job.id}"), **spec.variables,
    }  # fmt: skip
    if spec.account:
        said["PBS_ACCOUNT"] = spec.account
    if job.parent:
        said |= {"PBS_ARRAY_ID": job.parent.id, "PBS_ARRAY_INDEX": str(job.index)}
    return said


def start(job: Job, state: Path) -> None:
    spec = job.spec
    environ = environment(job, state)
    Path(environ["TMPDIR"]).mkdir(parents=True, exist_ok=True)
    hosts = [node for node in NODES for at, chunk in job.placed for _ in range(chunk.mpiprocs) if at == node]
    Path(environ["PBS_NODEFILE"]).write_text("".join(f"{host}\n" for host in hosts))
    argv = spec.argv
    if argv is None:
        script = state / "jobs" / f"{job.id}.SC"
        script.write_bytes((spec.script or "").encode("utf-8", "surrogateescape"))
        script.chmod(0o700)
        argv = ["-sh", "-c", '/bin/bash "$0"; exit $?', str(script)]  # the login shell stays as the first process
    job.output_file = _output(job, state)
    try:
        with open(job.output_file, "ab", opener=_opener(spec.umask)) as out:
            job.process = subprocess.Popen(
                argv,
                executable="/bin/sh" if spec.argv is None else None,
                env=environ,
                cwd=spec.home,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out if spec.join != "n" else subprocess.DEVNULL,
                start_new_session=True,
                umask=spec.umask,
            )
    except OSError as error:
        note(job, f"pbs_mom, exec of {argv[0]} failed with error: {error.strerror}")
        job.process = subprocess.Popen(["/bin/sh", "-c", "exit 254"], start_new_session=True)
    job.sessions = [job.process.pid]


def _opener(umask: int):  # noqa: ANN202
    return lambda path, flags: os.open(path, flags, 0o666 & ~umask)


def lacks_folder(job: Job) -> bool:
    """Return whether output has to be written to a folder that is not there: such a job cannot be started."""
    return _at_once(job) and not Path(_target(job)).parent.is_dir()


def _at_once(job: Job) -> bool:
    return "d" in job.spec.keep and "o" in job.spec.keep


def _output(job: Job, state: Path) -> str:
    """Return where output goes at once: the place of -o with -k oed, else the spool until the job has ended."""
    return _target(job) if _at_once(job) else str(state / "spool" / f"{job.id}.OU")


def _target(job: Job) -> str:
    tail = str(job.number) if job.index is None else f"{job.number}.{job.index}"
    path = job.spec.output or f"{job.spec.cwd}/{job.spec.name}.o{tail}"
    path = path.replace("^array_index^", str(job.index))
    return f"{path.rstrip('/')}/{job.id}.OU" if path.endswith("/") or Path(path).is_dir() else path


def deliver(job: Job) -> None:
    """Copy the spooled output to its place, or keep it to ourselves where that does not exist."""
    spooled, target = Path(job.output_file or "/dev/null"), Path(_target(job))
    if str(spooled) != str(target) and spooled.parent.name == "spool" and target.parent.is_dir():
        with contextlib.suppress(OSError), target.open("wb") as file:
            file.write(spooled.read_bytes())


def note(job: Job, line: str) -> None:
    """Add a mom's own line to the job's output."""
    if job.output_file:
        with contextlib.suppress(OSError), Path(job.output_file).open("a") as file:
            file.write(f"{line}\n")


def processes(sessions: list[int]) -> list[int]:
    """Return the processes of these sessions."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                text = Path(entry.path, "stat").read_text(errors="replace")
                words = text[text.rindex(")") + 2 :].split()
                if int(words[3]) in sessions and words[0] != "Z":
                    found.append(int(entry.name))
    return found


def tell(sessions: list[int], number: int) -> None:
    """Signal every process of the sessions, one by one as a mom does."""
    for pid in processes(sessions):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def reap(job: Job) -> int | None:
    """Return the Exit_status of a job whose first process ended, having killed what it left in its sessions."""
    if job.process is None or (code := job.process.poll()) is None:
        return None
    tell(job.sessions, signal.SIGKILL)
    return 256 - code if code < 0 else code
