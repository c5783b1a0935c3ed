"""Any of PBS's programs: hands its words to the double's server and prints the answer. Standard library only.

Run by a wrapper as ``client.py STATE_DIRECTORY PROGRAM [WORDS]``. Tasks of pbs_tmrsh and pbsdsh are its own children.
"""

# pathlib would cost a third of the run time, and printing is what it does
# ruff: noqa: PTH118, PTH123, PTH109, T201

import json
import os
import signal
import socket
import subprocess
import sys

REFUSED = {"qstat": 255, "pbsnodes": 1}


def ask(state: str, question: dict) -> dict:
    with socket.socket(socket.AF_UNIX) as connection:
        with open(os.path.join(state, "address")) as file:
            connection.connect("\0" + file.read())
        connection.sendall(json.dumps(question).encode() + b"\n")
        chunks = []
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
    return json.loads(b"".join(chunks))


def refused(program: str) -> dict:
    say = {
        "qdel": "Couldn't connect to cluster: pbs01",
        "pbsnodes": "pbsnodes: cannot connect to server pbs01, error=15010",
    }
    text = say.get(program, f"{program}: cannot connect to server pbs01 (errno=15010)")
    return {"rc": REFUSED.get(program, 162), "out": "", "err": f"Connection refused\n{text}\n"}


def as_a_mom_starts_it() -> None:
    """Heed what this client ignores."""
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)


def run_task(state: str, task: dict) -> int:
    """Run one task as a mom does: a session of its own, told to the server, so that it dies with its job."""
    argv = task["argv"]
    try:
        child = subprocess.Popen(
            argv,
            env=task["env"],
            cwd=task["cwd"],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            preexec_fn=as_a_mom_starts_it,  # noqa: PLW1509 - there is one thread
        )
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
        return 254
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the job's end reaches the task by itself
    ask(state, {"program": "_task", "argv": [task["job"], str(child.pid)], "cwd": "/", "env": {}})
    code = child.wait()
    return 256 - code if code < 0 else code


def main() -> int:
    state, program, *words = sys.argv[1:]
    question = {"program": program, "argv": words, "cwd": os.getcwd(), "env": dict(os.environ), "user": os.getuid()}
    try:
        answer = ask(state, question)
        if answer.get("need") == "stdin":
            answer = ask(state, {**question, "stdin": sys.stdin.buffer.read().decode("utf-8", "surrogateescape")})
    except OSError:
        answer = refused(program)
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    sys.stdout.flush()
    code = answer["rc"]
    for number, task in enumerate(answer.get("tasks", ())):
        result = run_task(state, task)
        if program == "pbs_tmrsh":
            code = result
        elif result:
            print(f"pbsdsh: task 0x{number:08x} exit status {result}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
