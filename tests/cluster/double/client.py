"""Any program of a double: hands its words to the server and prints the answer. Standard library only.

Run by a wrapper as ``client.py STATE_DIRECTORY PROGRAM [WORDS]``; what the server wants done here, it says.
"""

# pathlib would cost a third of the run time, and printing is what it does
# ruff: noqa: PTH118, PTH123, PTH109

import json
import os
import signal
import socket
import subprocess
import sys


def ask(state: str, question: dict) -> dict:
    with socket.socket(socket.AF_UNIX) as connection:
        with open(os.path.join(state, "address")) as file:
            connection.connect("\0" + file.read())
        connection.sendall(json.dumps(question).encode() + b"\n")
        chunks = []
        while chunk := connection.recv(1 << 20):
            chunks.append(chunk)
    return json.loads(b"".join(chunks))


def main() -> int:
    state, program, *words = sys.argv[1:]
    question = {"program": program, "argv": words, "cwd": os.getcwd(), "env": dict(os.environ)}
    if program == "bsub" and not any(not word.startswith("-") for word in words[1:]):
        question["stdin"] = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    try:
        answer = ask(state, question)
    except OSError:  # the server is not there
        answer = {
            "rc": 255,
            "out": "",
            "err": os.environ.get("DOUBLE_SILENCE", "Cannot connect to LSF. Please wait ...\n"),
        }
    sys.stdout.write(answer["out"])
    sys.stderr.write(answer["err"])
    sys.stdout.flush()
    if task := answer.get("task"):  # of another node: its process is this one's child, and belongs to the job
        child = subprocess.Popen(task["argv"], env=task["env"], cwd=task["cwd"], start_new_session=True)
        ask(state, {"program": "_task", "argv": [*task["job"], str(child.pid)], "cwd": "/", "env": {}})
        signal.signal(signal.SIGTERM, lambda *_: child.send_signal(signal.SIGTERM))
        signal.signal(signal.SIGUSR1, lambda *_: child.send_signal(signal.SIGUSR1))
        code = child.wait()
        return 128 - code if code < 0 else code
    return answer["rc"]


if __name__ == "__main__":
    sys.exit(main())
