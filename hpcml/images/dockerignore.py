"""Which files a ``.dockerignore`` keeps out of the context of a Dockerfile, by the rules of docker's documentation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from hpcml.errors import ConfigError


class Ignored:
    """The patterns that hold for a Dockerfile; the last one that fits a path or a folder above it decides."""

    def __init__(self, rules: Sequence[tuple[re.Pattern[str], bool]] = ()) -> None:
        """Take *rules*: what is matched, and whether it is kept out (else it is taken in again)."""
        self._rules = rules
        self._has_exceptions = any(not is_out for _, is_out in rules)

    @classmethod
    def of(cls, dockerfile: Path, context: Path) -> Ignored:
        """Read ``NAME.dockerignore`` beside the Dockerfile NAME, else ``.dockerignore`` of the context.

        Raises `ConfigError` where it cannot be read, or has a pattern that is none.
        """
        for path in (dockerfile.with_name(f"{dockerfile.name}.dockerignore"), context / ".dockerignore"):
            try:
                lines = path.read_text(encoding="utf-8-sig").splitlines()
                return cls([rule for line in lines if (rule := _rule(line))])
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError, re.error) as error:
                why = error.strerror if isinstance(error, OSError) else str(error)
                raise ConfigError(f"{path} cannot be read: {why}") from error
        return cls()

    def keeps_out(self, name: PurePosixPath) -> bool:
        """Tell whether *name*, relative to the context, is not in it."""
        above = [str(each) for each in (name, *name.parents) if str(each) != "."]
        is_out = False
        for pattern, is_rule_out in self._rules:
            if is_rule_out != is_out and any(pattern.fullmatch(each) for each in above):
                is_out = is_rule_out
        return is_out

    def kept(self, context: Path, name: str) -> list[str]:
        """Return the largest parts of *name* that are in the context whole: itself, or names below it, or none."""
        return self._kept(context, PurePosixPath(name))[0] if self._rules else [name]

    def _kept(self, context: Path, name: PurePosixPath) -> tuple[list[str], bool]:
        """Return the parts, and whether that is the whole of *name*."""
        is_out = self.keeps_out(name)
        path = context / name
        if not path.is_dir() or path.is_symlink() or (is_out and not self._has_exceptions):
            return ([], False) if is_out else ([str(name)], True)
        below = [self._kept(context, name / each.name) for each in sorted(path.iterdir())]
        if not is_out and all(is_whole for _, is_whole in below):
            return [str(name)], True
        return [part for parts, _ in below for part in parts], False

    def left_out(self, context: Path, name: str) -> Iterator[str]:
        """Yield the largest parts of *name* that are not in the context: itself, or names below it."""
        path = PurePosixPath(name)
        is_out, is_folder = self.keeps_out(path), (context / path).is_dir() and not (context / path).is_symlink()
        if is_out and not (is_folder and self._has_exceptions):
            yield name
        elif is_folder and self._rules:
            for each in sorted((context / path).iterdir()):
                yield from self.left_out(context, str(path / each.name))


def _rule(line: str) -> tuple[re.Pattern[str], bool] | None:
    """Return what a line of the file says; None for a comment or an empty one."""
    if line.startswith("#") or not line.strip():
        return None
    words = line.strip()
    is_out = not words.startswith("!")
    words = words.removeprefix("!").strip()
    pattern = posixpath.normpath(words).lstrip("/")
    return re.compile(_regex(pattern)), is_out


def _regex(pattern: str) -> str:
    """Return a pattern of Go's filepath.Match, with ``**`` for any number of folders, as a regular expression."""
    out, at = "", 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out, at = out + "(?:.*/)?", at + 3
        elif pattern.startswith("**", at):
            out, at = out + ".*", at + 2
        elif pattern[at] in "*?":
            out, at = out + ("[^/]*" if pattern[at] == "*" else "[^/]"), at + 1
        elif pattern[at] == "[" and (end := pattern.find("]", at + 2)) > 0:
            inside = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            out, at = out + f"[{inside}]", end + 1
        elif pattern[at] == "\\" and at + 1 < len(pattern):
            out, at = out + re.escape(pattern[at + 1]), at + 2
        else:
            out, at = out + re.escape(pattern[at]), at + 1
    return out
