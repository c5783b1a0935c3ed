"""Why a YAML file of a user cannot be read: one line that says the place in it, and what to do."""

from __future__ import annotations

from pathlib import Path

import yaml

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
    return None


def in_one_line(error: Exception) -> str:
    """Return the first line of what Hydra or OmegaConf says, with the file, key or word that it is about."""
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    file = next((line.partition("'")[2].partition("'")[0] for line in lines if line.startswith("In '")), None)
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), "")
    texts = [line.partition("': ")[2] if line.startswith("In '") else line for line in lines]
    text = next((line for line in texts if not line.endswith(_COMPOSING)), type(error).__name__).removeprefix(_MERGING)
    if error.__cause__ is not None and (cause := str(error.__cause__).partition("\n")[0]) and cause not in text:
        text = f"{text.rstrip('.')}: {cause}"
    return f"{f'{file}.yaml: ' if file else ''}{f'{key}: ' if key and key not in text else ''}{text}"
