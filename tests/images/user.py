"""What an ordinary user does with images: the commands as typed, and what they find afterwards."""

from __future__ import annotations

import json
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.cluster.apptainer.registry import Registry
from tests.cluster.slurm.account import Account

LONGEST_S = 300  # for what will happen: a loaded machine needs its time
START = "from hpcml.cli.main import main; main()"


@dataclass(frozen=True)
class ImageUser:
    """A user, a project, a home of runs and a folder of images."""

    account: Account
    folder: Path
    environ: dict[str, str]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def images(self) -> Path:
        return self.folder / "images"

    def variables(self, **more: str) -> dict[str, str]:
        places = {"HPCML_HOME": str(self.folder / "hpcml"), "HPCML_IMAGES": str(self.images)}
        return {**self.environ, **places, "HOME": str(self.folder / "me"), **more}

    def __call__(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        done = self.account.run(
            [str(self.account.python), "-c", START, *words], cwd=self.folder, environ=self.variables(**variables)
        )
        return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())

    def start(self, *words: str, **variables: str) -> subprocess.Popen[str]:
        # Whoever runs these tests in the background ignores SIGINT, and so would all that they start.
        process = subprocess.Popen(
            ["env", "--default-signal=INT", str(self.account.python), "-c", START, *words],
            cwd=self.folder,
            env={**self.account.environ, **self.variables(**variables)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            user="hpcuser",
            group="hpcuser",
            extra_groups=[],
        )
        self.started.append(process)
        return process

    def end_all(self) -> None:
        """End what was started and runs on, as it does where a test has failed, and forget it."""
        for process in self.started:
            process.kill()
            process.wait(LONGEST_S)
            for pipe in filter(None, (process.stdout, process.stderr)):
                with suppress(OSError):
                    pipe.close()
        self.started.clear()

    def build(self, registry: Registry, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self("build", *self.build_words(registry, *words), **variables)

    def build_words(self, registry: Registry, *words: str) -> list[str]:
        return [
            "+container=ngc_pytorch",
            f"container.registry={registry.url}",
            "container.tag=24.12-py3",
            *words,
        ]

    def listed(self) -> list[dict[str, Any]]:
        done = self("images", "--json")
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def inside(self, image: str, *command: str) -> str:
        """Return what a command prints in an image."""
        done = self.account.run(["apptainer", "exec", image, *command], cwd=self.folder, environ=self.variables())
        assert done.returncode == 0, done.stderr
        return done.stdout.decode()

    def everything_written(self) -> list[Path]:
        return [path for path in self.folder.rglob("*") if path.is_file()]

    def left_behind(self) -> list[str]:
        """Return the names in the folder of images, but for the layers that were downloaded and the empty locks."""
        if not self.images.exists():
            return []
        names = [path.name for path in self.images.iterdir() if path.name != ".layers"]
        if not any((self.images / "locks").glob("*")):
            names = [name for name in names if name != "locks"]
        return sorted(names)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Return the line in which a command has refused; stages that were shown before it are left out."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("hpcml: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]
