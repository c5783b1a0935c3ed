"""Why a YAML file of a user cannot be read: one line that says the place in it, and what to do."""

from __future__ import annotations

from pathlib import Path

import yaml

_MOST_BYTES = 1 << 20  # of which Hydra takes a minute
_MOST_VALUES = 100_000  # the same
_COMPOSING = "raised while composing config:"  # behind which stands what was raised
_MERGING = "Error merging override "


def why_unreadable(path: object, error: Exception) -> str:
    r"""Return the file, the line where one is known, and what *error* says of it.

    >>> try:
    ...     _ = yaml.safe_load("a: 1\n\tb: 2")
    ... except yaml.YAMLError as error:
    ...     why_unreadable("a.yaml", error)
    "a.yaml, line 2: found character '\\t' that cannot start any token: indent with spaces, not with tabs"
    """
    if isinstance(error, yaml.MarkedYAMLError) and error.problem is not None and error.problem_mark is not None:
        advice = ": indent with spaces, not with tabs" if r"'\t'" in error.problem else ""
        return f"{path}, line {error.problem_mark.line + 1}: {error.problem}{advice}"
    if isinstance(error, UnicodeDecodeError):
        return f"{path}: {error}: save it in UTF-8"
    return f"{path}: {in_one_line(error)}"


def why_no_options(path: Path) -> str | None:
    """Return why what is at *path* is no file of options; None where it may be one, or nothing is there."""
    if path.is_dir():
        return f"{path} is a folder: an option is a file of that name"
    if path.is_symlink() and not path.exists():
        return f"{path} is a link to {path.readlink()}, and nothing is there: mend the link, or choose another option"
    if path.is_file() and path.stat().st_size > _MOST_BYTES:
        return f"{path} has {path.stat().st_size >> 20} MiB, and a file of options some lines: choose another option"
    if path.is_file() and (n_values := _n_values(path)) > _MOST_VALUES:
        return f"{path} stands for {n_values:,} values by its aliases (*NAME): write fewer of them into each other"
    return None


def _n_values(path: Path) -> int:
    """Return for how many values a file of YAML stands, each alias written out, as Hydra does; 0 if it is none."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if "*" not in text:
        return 0
    known: dict[int, int] = {}

    def counted(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) not in known:
            known[id(node)] = 1  # of one that holds itself
            parts = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
            known[id(node)] = 1 + sum(map(counted, parts))
        return known[id(node)]

    try:
        whole = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return 0  # which is said when it is read
    return 0 if whole is None else counted(whole)


def in_one_line(error: Exception) -> str:
    """Return the first line of what Hydra or OmegaConf says, with the file, key or word that it is about."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    file = next((line.partition("'")[2].partition("'")[0] for line in lines if line.startswith("In '")), None)
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    told = [line.partition("': ")[2] if line.startswith("In '") else line for line in lines]
    said = next((line for line in told if not line.endswith(_COMPOSING)), type(error).__name__).removeprefix(_MERGING)
    if error.__cause__ is not None and (cause := str(error.__cause__).partition("\n")[0]) and cause not in said:
        said = f"{said.rstrip('.')}: {cause}"
    return f"{f'{file}.yaml: ' if file else ''}{f'{key}: ' if key and key not in said else ''}{said}"
