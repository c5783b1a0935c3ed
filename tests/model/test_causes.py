import time

import pytest

from hpcml.model.failure_causes import Cause, classify, ended_because, last_exception, last_line
from hpcml.model.state import State

TRACEBACK = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\n    main()\n'


def cause_of_failure(log_tail: str = "", *, exit_code: int | None = 1, signal: int | None = None) -> Cause:
    return classify(State.FAILED, reason=None, exit_code=exit_code, signal=signal, log_tail=log_tail)


@pytest.mark.parametrize(
    ("state", "reason", "cause"),
    [
        (State.TIMEOUT, None, Cause.TIME_LIMIT),
        (State.TIMEOUT, "walltime of 60 s reached", Cause.TIME_LIMIT),
        (State.OUT_OF_MEMORY, None, Cause.HOST_MEMORY),
        (State.NODE_FAIL, None, Cause.NODE_FAILURE),
        (State.PREEMPTED, None, Cause.PREEMPTION),
        (State.CANCELLED, "*** JOB 39 ON gpu2 CANCELLED AT 12:00 DUE TO PREEMPTION ***", Cause.PREEMPTION),
        (State.CANCELLED, "cancelled by user 1001", Cause.CANCELLED),
        (State.LOST, "nothing supervises it any more", Cause.UNKNOWN),
    ],
)
def test_the_state_decides_first(state: State, reason: str | None, cause: Cause) -> None:
    assert classify(state, reason=reason, exit_code=None, signal=None, log_tail="MemoryError") is cause


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", Cause.GPU_MEMORY),
        ("jax: RESOURCE_EXHAUSTED: Out of memory allocating 17179869184 bytes.", Cause.GPU_MEMORY),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB", Cause.GPU_MEMORY),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB.", Cause.GPU_MEMORY),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0)", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: out of memory", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", Cause.GPU_MEMORY),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Cause.GPU_FAULT),
        ("NVRM: Xid (PCI:0000:83:00): 79, pid=123, GPU has fallen off the bus.", Cause.GPU_FAULT),
        ("Unable to determine the device handle for GPU 0000:07:00.0: GPU is lost.", Cause.GPU_FAULT),
        ("MemoryError", Cause.HOST_MEMORY),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 80. GiB", Cause.HOST_MEMORY),
        ("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory", Cause.HOST_MEMORY),
        ("OSError: [Errno 12] Cannot allocate memory", Cause.HOST_MEMORY),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=11300781.0. Some of", Cause.HOST_MEMORY),
        ("slurmstepd: error: Detected 1 oom-kill event(s) in StepId=191.batch cgroup.", Cause.HOST_MEMORY),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. ", Cause.HOST_MEMORY),
        ("OSError: [Errno 28] No space left on device: 'last.pt'", Cause.DISK),
        ("OSError: [Errno 122] Disk quota exceeded", Cause.DISK),
        ("  what():  write failed: No space left on device\nAborted (core dumped)", Cause.DISK),
        ("Error: ENOSPC: no space left on device, write", Cause.DISK),
        (
            "RuntimeError: NCCL error in: ../torch/csrc/NCCLUtils.cpp:317, unhandled system error, NCCL version 2.18.3",
            Cause.COMMUNICATION,
        ),
        (
            "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(",
            Cause.COMMUNICATION,
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.0.1]:8",
            Cause.COMMUNICATION,
        ),
        (
            "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:136] Timed out waiting 1800000ms for send operation",
            Cause.COMMUNICATION,
        ),
    ],
)
def test_what_only_the_failure_itself_prints_is_recognised(line: str, cause: Cause) -> None:
    assert cause_of_failure(f"step 12: loss 0.3\n{TRACEBACK}{line}\n") is cause


@pytest.mark.parametrize(
    "text",
    [
        f"{TRACEBACK}ValueError: shapes do not match",
        # A wrong index does this as well as broken hardware.
        f"{TRACEBACK}RuntimeError: CUDA error: unspecified launch failure",
        f"{TRACEBACK}RuntimeError: CUDA error: an illegal memory access was encountered",
        "NCCL version 2.18.3: unhandled cuda error",
        "WARNING: CUDA out of memory with batch 512, trying 256",
        "FATAL: the loss is not finite",
        "cache not written: No space left on device" + "\nstep" * 30,
        "OSError: [Errno 28] inotify watch limit reached",
        "RuntimeError: the model saw no MemoryError",
        "",
    ],
)
def test_what_may_be_the_users_own_fault_counts_as_that(text: str) -> None:
    assert cause_of_failure(text) is Cause.PROGRAM


@pytest.mark.parametrize(("exit_code", "cause"), [(255, Cause.CONTAINER), (1, Cause.PROGRAM)])
def test_a_container_fails_by_its_word_and_its_exit_status_together(exit_code: int, cause: Cause) -> None:
    tail = "\x1b[31mFATAL:   \x1b[0m could not open image /images/torch.sif: no such file or directory\n"

    assert cause_of_failure(tail, exit_code=exit_code) is cause


@pytest.mark.parametrize(
    ("exit_code", "signal", "cause"),
    [
        (None, 11, Cause.PROGRAM),
        (139, None, Cause.PROGRAM),
        (127, None, Cause.PROGRAM),
        (None, 9, Cause.UNKNOWN),
        (137, None, Cause.UNKNOWN),
        (None, 15, Cause.UNKNOWN),
        (None, None, Cause.UNKNOWN),
    ],
)
def test_without_words_the_way_of_ending_is_all_there_is(
    exit_code: int | None, signal: int | None, cause: Cause
) -> None:
    assert cause_of_failure(exit_code=exit_code, signal=signal) is cause


@pytest.mark.parametrize(
    ("tail", "said"),
    [
        (
            f"{TRACEBACK}ModuleNotFoundError: No module named 'mine'\n",
            "this Python does not find mine: activate the environment that has it before hpcml run (if it is a module",
        ),
    ],
)
def test_an_end_whose_remedy_is_known_says_it(tail: str, said: str) -> None:
    assert str(ended_because(tail)).startswith(said)
    assert ended_because(f"{tail}and it went on\n") is None


TORCHRUN = """[rank1]: Traceback (most recent call last):
[rank1]:   File "train.py", line 3, in <module>
[rank1]:     raise KeyError("lr")
[rank1]: KeyError: 'lr'
Traceback (most recent call last):
  File "/env/bin/torchrun", line 7, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
"""
WORKER = f"""{TRACEBACK}RuntimeError: Caught ValueError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "loader.py", line 9, in fetch
    raise ValueError
ValueError: bad sample
"""
CPP = """Number of labels: 3
terminate called after throwing an instance of 'fasttext::DenseMatrix::EncounteredNaNError'
  what():  Encountered NaN.
"""
LONG = f"{TRACEBACK}_pickle.UnpicklingError: Weights only load failed.\n\t(1) In 2.6 ...\n\nCheck the documentation.\n"


@pytest.mark.parametrize(
    ("printed", "exception"),
    [
        (f"{TRACEBACK}ValueError: no such layer\n", "ValueError: no such layer"),
        (f"{TRACEBACK}AssertionError\nbye\n", "AssertionError"),
        (LONG, "_pickle.UnpicklingError: Weights only load failed."),
        (f"{TRACEBACK}OSError: first\n\nDuring handling of it:\n\n{TRACEBACK}KeyError: 'last'\n", "KeyError: 'last'"),
        (f"{TRACEBACK}\x1b[1;35mValueError\x1b[0m: \x1b[35min colour\x1b[0m\n", "ValueError: in colour"),
        (f"Process Worker-1:\n{TRACEBACK}ValueError: of a child\n", "ValueError: of a child"),
        (WORKER, "ValueError: bad sample"),
        (CPP, "fasttext::DenseMatrix::EncounteredNaNError: Encountered NaN."),
        ("terminate called after throwing an instance of 'int'\n", "int"),
        (TORCHRUN, "KeyError: 'lr'"),
        (f"{TRACEBACK}subprocess.CalledProcessError: returned 1\n", "subprocess.CalledProcessError: returned 1"),
        (f"{TRACEBACK}ValueError: {'x' * 300}\n", f"ValueError: {'x' * 225}..."),
        ("ValueError: said without a traceback\n", None),
        (TRACEBACK, None),
        ("", None),
    ],
)
def test_the_last_exception_is_the_first_line_of_the_last_traceback(printed: str, exception: str | None) -> None:
    assert last_exception(printed) == exception


# Printed by programs of gfortran 12, and by workflows that start Python
OF_OTHER_PROGRAMS = {
    """At line 10 of file a.f90 (unit = 10)
Fortran runtime error: Cannot open file 'nosuch.dat': No such file or directory

Error termination. Backtrace:
#0  0x7fcef06218c2 in ???
#6  0x55557c2234f6 in main
\tat /tmp/a.f90:15
""": "Fortran runtime error: Cannot open file 'nosuch.dat': No such file or directory",
    "ERROR STOP no such deck\n\nError termination. Backtrace:\n#0  0x7ff1fca218c2 in ???\n": "ERROR STOP no such deck",
    "Caused by:\n  Process `FIT` terminated\n\nCommand error:\n  Traceback (most recent call last):\n"
    '    File "train.py", line 3, in <module>\n  ValueError: bad rate\n\nWork dir:\n  /w/ab\n': "ValueError: bad rate",
    f"{TRACEBACK}ValueError: bad rate\nError in rule train:\n    jobid: 1\n": "ValueError: bad rate",
    "Error in epoch 3 : loss is nan, skipped\ngiving up\n": None,
    "the loss is in no panic: 0.5\nSTOP 3\n": None,
}


@pytest.mark.parametrize(("printed", "exception"), OF_OTHER_PROGRAMS.items())
def test_what_ended_a_fortran_program_is_above_its_backtrace(printed: str, exception: str | None) -> None:
    assert last_exception(printed) == exception


RULER = "-" * 74
# Printed by Open MPI 4.1.4, of a program on two ranks that calls exit(4), or calls MPI_Abort
ONE_EXITED = f"""{RULER}
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
{RULER}
{RULER}
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[11061,1],1]
  Exit code:    4
{RULER}
"""
ONE_ABORTED = f"""ERROR: cannot open potential file Cu_u6.eam
{RULER}
MPI_ABORT was invoked on rank 0 in communicator MPI_COMM_WORLD
with errorcode 3.

NOTE: invoking MPI_ABORT causes Open MPI to kill all MPI processes.
{RULER}
[vm:18348] [[11090,0],0] ORTE_ERROR_LOG: Data unpack would read past end of buffer in file show_help.c at line 513
[vm:18348] 1 more process has sent help message help-mpi-api.txt / mpi-abort
[vm:18348] Set MCA parameter "orte_base_help_aggregate" to 0 to see all help / error messages
"""


@pytest.mark.parametrize(
    ("printed", "line"),
    [
        ("Checksum: 36691 (INVALID)\n=======\n\n", "Checksum: 36691 (INVALID)"),
        ("loss 0.5\n_____\n+----+\n", "loss 0.5"),
        ("=======\n", None),
        (f"Error: bad input deck, line 7\n{ONE_EXITED}", "Error: bad input deck, line 7"),
        (ONE_ABORTED, "ERROR: cannot open potential file Cu_u6.eam"),
        (f"Results\n{RULER}\n1 2 3\n", "1 2 3"),
        ('[1] "bad (rate)"\n[1] 0.5\n', "[1] 0.5"),
        ("[1] loaded\nrank 0 ended\n[2] assert(x > 0) failed\n", "[2] assert(x > 0) failed"),
        ("done\nat step 5 (loss 3)\n", "at step 5 (loss 3)"),
        ("at line 3 column 5\n", "at line 3 column 5"),
        ("no such deck\nsrun: error: n1: task 1: Exited with exit code 9\n", "no such deck"),
        (
            "unknown host, went on\nusage: t.py [--lr LR]\nt.py: error: argument --lr: bad\n",
            "t.py: error: argument --lr: bad",
        ),
        ("Usage of memory: 3 GiB\nno such deck\n", "no such deck"),
        ("invalid value skipped\nUsage: 3 GiB\nno such deck\n", "no such deck"),
        ("no such deck\nmake[1]: *** [Makefile:3: run] Error 3\nmake: *** [Makefile:9: all] Error 2\n", "no such deck"),
    ],
)
def test_the_last_line_tells_something(printed: str, line: str | None) -> None:
    assert last_line(printed) == line


@pytest.mark.parametrize("begin", ["@ ", "at ", "from ", "[1] f(", "[a:1] ", "Calls: ", "Error in ", "#1", ""])
@pytest.mark.parametrize("piece", ["x", ":1", ")", "a (", " -> ", "1:"])
def test_long_lines_are_read_in_a_moment(begin: str, piece: str) -> None:
    text = begin + piece * 50_000

    began = time.monotonic()
    last_exception(text)
    ended_because(text)

    assert last_line(f"why it ended\n{text} and more") is not None
    assert time.monotonic() - began < 5
