"""Why a run ended without success, as one of a few causes; the cause decides whether a retry is worthwhile.

`classify` derives the cause from the scheduler's state, the exit code or signal, and the last lines that the program
printed. The agent calls it at the end of an attempt, and `hpcml sync` for runs whose agent could not tell.
"""

from __future__ import annotations

import re
import signal as signals
from enum import StrEnum

from hpcml.model.state import State


class Cause(StrEnum):
    """The cause of an unsuccessful end. The values are stable: journals, the store and the command line use them."""

    TIME_LIMIT = "time_limit"
    HOST_MEMORY = "host_memory"
    GPU_MEMORY = "gpu_memory"
    NODE_FAILURE = "node_failure"
    PREEMPTION = "preemption"
    GPU_FAULT = "gpu_fault"  # Xid, ECC, a device that fell off the bus
    COMMUNICATION = "communication"  # NCCL, gloo, MPI
    CONTAINER = "container"  # the image, or what starts it
    DISK = "disk"  # full, or the user's quota is
    PRECISION_MISMATCH = "precision_mismatch"  # measured to be another than asked for, and precision.on_mismatch=fail
    PROGRAM = "program"  # the user's own code or input
    CANCELLED = "cancelled"
    AGENT_KILLED = "agent_killed"  # what watches it was killed, or its machine restarted: nobody saw how it ended
    DEPENDENCY = "dependency"  # a run that it waited for ended otherwise than it was to end
    SUBMISSION = "submission"  # the scheduler refused it, or never got it
    UNKNOWN = "unknown"


_BY_STATE = {
    State.TIMEOUT: Cause.TIME_LIMIT,
    State.OUT_OF_MEMORY: Cause.HOST_MEMORY,
    State.NODE_FAIL: Cause.NODE_FAILURE,
    State.PREEMPTED: Cause.PREEMPTION,
}
_IN_VAIN = ("DependencyNeverSatisfied", "its dependency cannot be met")  # Slurm's word, and ours for what PBS shows
_CONTAINER_FAILED = 255  # Apptainer's own failures, all of them (measured with 1.4)
_KILLED_FROM_OUTSIDE = frozenset({signals.SIGKILL, signals.SIGTERM, signals.SIGINT, signals.SIGHUP})
_ENDED = re.compile(r"^hpcml_client: ended, because (.+)$", re.MULTILINE)
_MISMATCH = re.compile(
    r"^hpcml_client: ended, because (precision=\S+ was asked for, but .+ was measured on .+)$", re.MULTILINE
)
_NO_CLIENT = re.compile(
    r"^(\[rank\d+\]: ?)?(ModuleNotFound|Import)Error: No module named '?hpcml_client'?$", re.MULTILINE
)
_INSTALL_CLIENT = (
    "this Python does not find hpcml_client: something keeps PYTHONPATH from it, where hpcml puts it (python -I or -E, "
    "env -i, sudo); leave that out, or install it there: pip install ./hpcml_client, from hpcml's source"
)
_NO_MODULE = re.compile(r"^(?:\[rank\d+\]: ?)?ModuleNotFoundError: No module named '([\w.]+)'\s*\Z", re.MULTILINE)
# Nextflow shows one with blanks before it
_TRACEBACK = re.compile(r"(?P<rank>\[rank\d+\]: ?| +(?=T))?(?:.* )?Traceback \(most recent call last\):\s*$")
_EXCEPTION = re.compile(r"(?P<type>[A-Za-z_][\w.]*)(?:: (?P<message>.*))?$")
# What ends programs of C++ and Fortran, above a backtrace
_OF_OTHERS = re.compile(
    r"^terminate called after throwing an instance of '(?P<type>[^']+)'(?:\n +what\(\): +(?P<what>.*))?$"  # libstdc++
    r"|^(?P<fortran>(?:Fortran runtime error: |forrtl: severe |ERROR STOP ).+)$",  # gfortran's library, and Intel's
    re.MULTILINE,
)
# What launchers end with when what they have started failed: torchrun; accelerate, deepspeed
_OF_LAUNCHERS = ("ChildFailedError", "CalledProcessError")
_BOX_OF_OPEN_MPI = "-" * 74  # above and below each of its messages (opal/util/show_help.c)
_BOX = re.compile(rf"^{_BOX_OF_OPEN_MPI}$.*?^{_BOX_OF_OPEN_MPI}$", re.MULTILINE | re.DOTALL)
# How launchers say, outside of a box, that what they have started failed, and nothing of why
_ONLY_THAT_IT_FAILED = re.compile(
    r"\[[^]\s]+:\d+\] (?:\[\[\d+,\d+\],\d+\] ORTE_ERROR_LOG: |\d+ more process(?:es)? (?:has|have) sent help message"
    r"|Set MCA parameter \"\w+_base_help_aggregate\")"
    r"|srun: error: \S+: tasks? [\d,-]+: Exited with exit code \d"
    r"|g?make(?:\[\d+\])?: \*\*\* \[.*\] Error \d"
)
_LONGEST_EXCEPTION = 240  # characters; a line that a table of runs still takes
_FOR_TERMINALS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")  # control sequences (CSI) of ECMA-48
# Those that move the cursor up, down, to a column or to a place of the screen, by which what was printed is drawn over.
TO_ANOTHER_LINE = re.compile(r"\x1b\[[0-9;]*[ABEFGHdf]")
_UID = re.compile(r"\b\d{8}-\d{6}-[a-z0-9]{8}\b")
_NUMBER = re.compile(
    r"(?<!status )(?<!line )(?<!rror )(?<!rrno )(?<!code )(?<!signal )(?<![A-Za-z0-9.])"
    r"[+-]?(?:0x[0-9a-fA-F]+|\d(?:[\d.,_]*\d)?(?:[eE][+-]?\d+)?)"
)
# Lines that nothing but the failure itself prints. Whatever a program may log and survive, or print for several
# reasons, is not here: "CUDA error: unspecified launch failure" and "an illegal memory access was encountered" mostly
# come from a wrong index, NCCL's "unhandled cuda error" from anything. The first kind that matches decides.
_PATTERNS: tuple[tuple[Cause, re.Pattern[str]], ...] = tuple(
    (cause, re.compile("|".join(patterns), re.MULTILINE))
    for cause, patterns in (
        (
            Cause.GPU_FAULT,
            (
                r"uncorrectable ECC error encountered",  # cudaErrorECCUncorrectable (cudaGetErrorString)
                r"CUDA_ERROR_ECC_UNCORRECTABLE",  # the same in the driver's interface, as TensorFlow and JAX say it
                r"GPU has fallen off the bus",  # the NVIDIA driver's words for Xid 79
                r"GPU is lost",  # NVML_ERROR_GPU_IS_LOST (nvmlErrorString)
                r"NVRM: Xid \(",  # the driver's line in the kernel's log, where a program or a prologue shows it
                r"CUDA error: system not yet initialized",  # cudaErrorSystemNotReady: the node's fabric manager
            ),
        ),
        (
            Cause.GPU_MEMORY,
            (
                r"^(\[rank\d+\]: ?)?(torch\.)?(cuda\.)?OutOfMemoryError: (CUDA|HIP) out of memory",  # torch 1.13
                r"^(\[rank\d+\]: ?)?RuntimeError: CUDA out of memory",  # torch before 1.13
                r"^hpcml_client: ended, because out of memory \(CUDA out of memory",  # the same in a recipe
                r"CUDA error: out of memory",  # cudaErrorMemoryAllocation, through torch's C10_CUDA_CHECK
                r"CUBLAS_STATUS_ALLOC_FAILED",  # cuBLAS could not have its workspace
                r"CUDNN_STATUS_ALLOC_FAILED",
                r"(ResourceExhaustedError|OOM when allocating tensor).*GPU",  # TensorFlow
                r"RESOURCE_EXHAUSTED: Out of memory (while trying to )?allocat",  # XLA: JAX
            ),
        ),
        (
            Cause.HOST_MEMORY,
            (
                r"^(\[rank\d+\]: ?)?(\w+\.)*(_Array)?MemoryError\b",  # Python, and NumPy's own
                r"DefaultCPUAllocator: (can't allocate|not enough) memory",  # torch, c10/core/impl/alloc_cpu.cpp
                r"terminate called after throwing an instance of 'std::bad_alloc'",
                r"\[Errno 12\] Cannot allocate memory",  # ENOMEM, of a fork as well
                r"slurmstepd: error: Detected \d+ oom[-_]kill event",  # with "-" until Slurm 21, "_" from then on
                # torch's DataLoader, of a /dev/shm that is full: it is memory, and counts as the job's
                r"worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Bus error",
                r"insufficient shared memory \(shm\)",
            ),
        ),
        (
            Cause.COMMUNICATION,
            (
                r"NCCL.*unhandled system error",  # ncclSystemError: a socket or a device of the network
                r"ncclSystemError: System call",  # torch's explanation of it
                r"ncclRemoteError: A call failed possibly due to a network error",
                r"Watchdog caught collective operation timeout",  # torch's ProcessGroupNCCL
                r"gloo/transport/\S+\] (Connection closed by peer|Read error|Timed out waiting \d+ms)",
                r"Gloo connectFullMesh failed",
                r"UCX +ERROR .*(Transport retry count exceeded|Connection reset by remote peer)",
                r"ORTE has lost communication with a remote daemon",  # Open MPI 4
            ),
        ),
    )
)
# ENOSPC (28) but of a watch on files, and EDQUOT (122): in the last lines, since a program may survive one
_NO_ROOM = re.compile(
    r"\[Errno 28\](?! inotify)|\[Errno 122\]|no space left on device|disk quota exceeded", re.IGNORECASE
)
_CONTAINER = re.compile(r"^(\x1b\[\d+m)?FATAL: ", re.MULTILINE)  # Apptainer's and Singularity's word, in red or not


def classify(
    state: State,
    *,
    reason: str | None,
    exit_code: int | None,
    signal: int | None,
    log_tail: str,
) -> Cause:
    """Return why a run ended in *state*, which is not COMPLETED.

    *log_tail* is the end of what the program printed; *exit_code* and *signal* are None where not known. What cannot be
    distinguished from a mistake of the user counts as one (PROGRAM), so that it is not retried in vain. Patterns and
    their sources are in `_PATTERNS`.

        >>> classify(State.FAILED, reason=None, exit_code=1, signal=None, log_tail="KeyError: 'x'")
        <Cause.PROGRAM: 'program'>
    """
    if state in _BY_STATE:
        return _BY_STATE[state]
    if state is State.CANCELLED and any(words in (reason or "") for words in _IN_VAIN):
        return Cause.DEPENDENCY
    if state is State.CANCELLED:
        # slurmstepd's "CANCELLED AT ... DUE TO PREEMPTION", and Slurm's reason for such a job
        return Cause.PREEMPTION if "preempt" in (reason or "").lower() else Cause.CANCELLED
    if state is not State.FAILED:
        return Cause.UNKNOWN
    return _of_failure(exit_code, signal, log_tail)


def ended_because(log_tail: str) -> str | None:
    """Return the reason that hpcml_client printed when it ended a program, or which module Python misses, or None.

    >>> ended_because("hpcml_client: ended, because out of memory")
    'out of memory'
    """
    if found := _ENDED.search(log_tail):
        return found[1]
    if _NO_CLIENT.search(log_tail):
        return _INSTALL_CLIENT
    if found := _NO_MODULE.search(log_tail):
        return (
            f"this Python does not find {found[1]}: activate the environment that has it before hpcml run (if it is a "
            "module of yours: workload.env.PYTHONPATH=FOLDER says in which folder it is, hpcml run -n what is copied)"
        )
    return None


def without_colours(printed: str) -> str:
    """Return what was *printed* without the sequences by which a terminal would colour, erase or move it."""
    return _FOR_TERMINALS.sub("", printed)


def printed_lines(printed: str) -> list[str]:
    r"""Return the lines of what was *printed*, without colours; what is drawn over them begins a line of its own.

    >>> printed_lines("\x1b[2K\x1b[1Gloss \x1b[1m0.5\x1b[0m\x1b[2K\x1b[1Gloss 0.4\rloss 0.3\n")
    ['', 'loss 0.5', 'loss 0.4', 'loss 0.3']
    """
    return without_colours(TO_ANOTHER_LINE.sub("\n", printed)).splitlines()


def last_exception(printed: str) -> str | None:
    r"""Return type and message of the last exception whose traceback was *printed*, as far as one line has it, or None.

    Also of what ended a C++ or Fortran program, above its backtrace. A launcher's, which only says that what it has
    started failed, counts where there is no other.

    >>> last_exception("Traceback (most recent call last):\n  File ...\nValueError: no such layer\nBye.\n")
    'ValueError: no such layer'
    """
    found = _exceptions(printed)
    own = [words for words in found if not words.partition(":")[0].endswith(_OF_LAUNCHERS)]
    last = next(iter((own or found)[-1:]), None)
    return None if last is None else _in_a_table(last)


def _exceptions(printed: str) -> list[str]:
    """Return the exceptions in what was *printed*: those of Python in their order, behind what ended other programs."""
    lines = printed_lines(printed)
    found = [
        match["fortran"] or ": ".join(filter(None, (match["type"], match["what"])))
        for match in _OF_OTHERS.finditer("\n".join(lines))
    ]
    rank: str | None = None  # what each line of the traceback that is being read begins with; None outside of one
    for line in lines:
        if begins := _TRACEBACK.match(line):
            rank = begins["rank"] or ""
        elif rank is not None and line.startswith(rank) and (words := line[len(rank) :]) and not words[0].isspace():
            rank = None
            if _EXCEPTION.match(words):
                found.append(words)
    return found


def last_line(printed: str) -> str | None:
    r"""Return the last line of what was *printed* that tells something, without colours; None where there is none.

    Blank lines and rulers tell nothing, nor do launchers that only say that what they have started failed.

    >>> last_line("reading x.dat\nCould not open file x.dat\n=======\n\n"), last_line("xxxx")
    ('Could not open file x.dat', 'xxxx')
    """
    whole = "\n".join(map(str.strip, printed_lines(printed)))
    for text in (_BOX.sub("", whole), whole):
        lines = [line for line in text.splitlines() if re.search(r"\w", line.replace("_", ""))]
        telling = [line for line in lines if not _ONLY_THAT_IT_FAILED.match(line)] or lines
        if telling:
            return _in_a_table(telling[-1])
    return None


def without_numbers(words: str) -> str:
    """Return *words* with a sign for each number that may be one run's own: its seed, a step, an address, its uid.

    Numbers that say which failure it is stay: of a status, a line, an error.

    >>> without_numbers("exit status 3; last line: line 7: seed 3 failed at step 812, 0.5 s, 0x7f2c")
    'exit status 3; last line: line 7: seed # failed at step #, # s, #'
    """
    return _NUMBER.sub("#", _UID.sub("#", words))


def _in_a_table(words: str) -> str:
    plain = "".join(c if c.isprintable() else " " for c in words).rstrip(" :")
    return plain if len(plain) <= _LONGEST_EXCEPTION else f"{plain[: _LONGEST_EXCEPTION - 3].rstrip()}..."


def _of_failure(exit_code: int | None, signal: int | None, log_tail: str) -> Cause:
    """Return the cause of a program's failure by its exit code or signal and the end of its output.

    PROGRAM where nothing points at anything else; UNKNOWN where SIGKILL or the like came from somebody outside.
    """
    if exit_code == _CONTAINER_FAILED and _CONTAINER.search(log_tail):
        return Cause.CONTAINER
    if _MISMATCH.search(log_tail):
        return Cause.PRECISION_MISMATCH
    for cause, pattern in _PATTERNS:
        if pattern.search(log_tail):
            return cause
    if _NO_ROOM.search("\n".join(log_tail.splitlines()[-30:])):
        return Cause.DISK
    ended_by = exit_code - 128 if signal is None and exit_code is not None and exit_code > 128 else signal
    if ended_by in _KILLED_FROM_OUTSIDE:
        return Cause.UNKNOWN  # somebody's hand, or want of memory where nobody counts it
    return Cause.UNKNOWN if exit_code is None and signal is None else Cause.PROGRAM
