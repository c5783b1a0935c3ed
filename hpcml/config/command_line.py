"""Prepares the arguments of ``hpcml run`` for Hydra, and turns Hydra's errors into one line (`in_one_line`)."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hpcml.errors import ConfigError
from hpcml.model.metric_goal import goal_by_name
from hpcml.model.run import Run
from hpcml.paths import is_source_of_hpcml
from hpcml.spelling import SYNONYMS, did_you_mean, nearest

# Hydra's flags that take a value (hydra/_internal/utils.py, get_args_parser); --info takes an optional one.
_WITH_VALUE = frozenset(
    {"-c", "--cfg", "-p", "--package", "-cp", "--config-path", "-cn", "--config-name", "-cd", "--config-dir"}
)
_PACKAGE = ("-p", "--package")
_WITH_DEFAULT = ("cluster", "container", "profile", "study", "devices")
MULTIRUN = ("-m", "--m")  # Hydra takes --multirun by its first letters
_INFO = ("-i", "--info")
_RERUN = (
    "--experimental-rerun"  # Hydra unpickles the file it names and leaves all other words; --experiment is short for it
)
_INFO_VALUES = frozenset({"all", "config", "defaults", "defaults-tree", "plugins", "searchpath"})
_OVERRIDE = re.compile(r"(?:[+~]{1,2}[^\s=]|[^-=\s][^=]*=)")
_OF_JOBS = ("resources.", "strategy.", "schedule.")  # settings that other programs have as flags of theirs
_DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"  # what a PDF or a word processor makes of "-"
OF_OWN_PROGRAMS = ("model=custom", "data=custom")  # said for the user, where nothing else is


@dataclass(frozen=True, slots=True)
class Words:
    """The arguments, with flags and overrides separated.

    argparse's ``nargs="*"``, which Hydra uses, ends at the first flag that follows an override. Both keep the order in
    which they were typed.

    >>> arrange(["--multirun", "seed=0,1"], shipped=shipped, project=project)  # doctest: +SKIP
    Words(flags=('--multirun',), overrides=('seed=0,1',))
    """

    flags: tuple[str, ...]
    overrides: tuple[str, ...]


def arrange(arguments: Sequence[str], *, shipped: Path, project: Path, is_own: bool = False) -> Words:
    """Separate flags and overrides, and make the changes that Hydra needs.

    ``+cluster=x`` becomes ``cluster=x``, ``+experiment=x`` a study, a command line is quoted, and *project*'s ./conf is
    added to the search path. Raises `ConfigError` for a word that is neither, and for sweepers other than Hydra's basic
    one. A metric that is chosen without its goal gets that of its name, or none. A command line of the user's own
    (*is_own*, ``workload.command=...``) also chooses ``model=custom`` and ``data=custom`` where nothing else was
    chosen. *shipped* is hpcml's own folder conf/. Whether keys and values exist is Hydra's to say, later.
    """
    words = _sort(arguments, project)
    if any(flag.startswith(MULTIRUN) for flag in words.flags):
        _refuse_expanded(words.overrides)
    own = project_conf(project, shipped)
    typed = [_study(word, own) for word in words.overrides]
    overrides = [_verbatim(_plain_group(word), "workload.command") for word in typed]
    keys = {word.lstrip("+~").partition("=")[0] for word in overrides}
    for sweeper in (word for word in overrides if word.startswith("hydra/sweeper=") and word != "hydra/sweeper=basic"):
        raise ConfigError(
            f"{sweeper} waits for each result to choose the next point; hpcml submits a sweep whole: "
            "list the points (seed=0,1,2, range(), choice())"
        )
    if (
        is_own or "workload.command" in keys
    ):  # a run of somebody's program must not be recorded as our CNN on our digits
        overrides[:0] = [word for word in OF_OWN_PROGRAMS if word.partition("=")[0] not in keys]
    if "objective.goal" not in keys and (way := _goal(overrides)) is not None:
        overrides.append(f"objective.goal={way}")
    if own is not None and "hydra.searchpath" not in keys:
        overrides.append(f"hydra.searchpath=[{in_quotes(f'file://{own}')}]")
    return Words(words.flags, tuple(overrides))


def set_again(words: Sequence[str]) -> list[str]:
    """Return a line for each setting that *words* set to one thing and then to another: the last one counts.

    What is added is another thing: ``+experiment=mine`` is a study, ``experiment=lr`` a name.

    >>> set_again(["precision=fp32", "seed=1", "precision=bf16", "seed=1", "+experiment=mine", "experiment=lr"])
    ['precision=fp32 has no effect: precision=bf16 stands behind it']
    """
    by_key = [(word.partition("=")[0], word) for word in dict.fromkeys(words) if "=" in word and word[:1] != "+"]
    last = {word.partition("=")[0]: word for word in words}
    return [f"{word} has no effect: {last[key]} stands behind it" for key, word in by_key if last[key] != word]


def _goal(overrides: Sequence[str]) -> str | None:
    """Return the goal of the name of the metric that *overrides* choose, "null" for none; None where none is chosen."""
    chosen = [value for key, _, value in (word.partition("=") for word in overrides) if key == "objective.metric"]
    if not chosen:
        return None
    goal = None if set(chosen[-1]) & set(",()[]{}") else goal_by_name(chosen[-1].strip("'\""))
    return "null" if goal is None else goal.name


def project_conf(project: Path, shipped: Path) -> Path | None:
    """Return ``<project>/conf`` if it holds options of any of hpcml's groups and is not hpcml's own, else None.

    A folder of that name may well belong to another program.
    """
    conf = project / "conf"
    if not conf.is_dir() or conf.resolve() == shipped.resolve() or is_source_of_hpcml(project):
        return None
    groups = {entry.name for entry in shipped.iterdir() if entry.is_dir()}
    return conf if any((conf / group).is_dir() for group in groups) else None


def _sort(arguments: Sequence[str], project: Path) -> Words:
    flags: list[str] = []
    overrides: list[str] = []
    rest, word = list(arguments), ""
    while rest:
        before, word = word, rest.pop(0)
        _refuse_other_flags(word, rest, arguments)
        if rest and (word in _WITH_VALUE or (word in _INFO and rest[0] in _INFO_VALUES)):
            flags += [word, rest.pop(0)]
        elif word == "--":
            continue
        elif word.startswith("-") and " " not in word:
            flags.append(word)
        elif _OVERRIDE.match(word):
            overrides.append(word)
        else:
            meant = _meant_instead(word, before, rest, project)
            raise ConfigError(f"{word!r} is no override: {meant}")
    return Words(tuple(flags), tuple(overrides))


def _refuse_other_flags(word: str, rest: Sequence[str], arguments: Sequence[str]) -> None:
    """Raise `ConfigError` where *word*, in front of *rest*, is a flag that Hydra would misunderstand."""
    if word in _PACKAGE and rest and not any(flag.startswith(("-c", "--cfg")) for flag in arguments):
        raise ConfigError(
            f"{word} {rest[0]}: that is Hydra's --package, for --cfg alone; "
            f"for Slurm's -p write resources.partition={rest[0]}"
        )
    flag, _, value = word.partition("=")
    if len(flag) > len("--") and _RERUN.startswith(flag):
        raise ConfigError(f"{word}: {instead_of_flag(flag, value or ' '.join(rest[:1]))}")
    if word == "-c" and rest and rest[0].isdecimal():
        raise ConfigError(
            f"-c {rest[0]}: that is Hydra's --cfg; for Slurm's -c write resources.cpus_per_task={rest[0]}"
        )


def _meant_instead(word: str, before: str, behind: Sequence[str], project: Path) -> str:
    """Return what to write instead of *word*, which no ``=`` makes a setting, between *before* and *behind*."""
    if before.endswith("="):
        return f"no blank stands behind a =: write {before}{word}"
    if word.startswith("-"):
        return instead_of_flag(*word.partition("=")[::2])
    if word.startswith(tuple(_DASHES)):
        return "its first sign is no '-', though it looks like one"
    if before.startswith("-"):
        return instead_of_flag(before, word)
    if shutil.which(word) or os.path.isfile(project / word):  # noqa: PTH113 - it may be any word
        starter = "python " if word.endswith(".py") else ""
        return f"a program stands behind two dashes: hpcml run -- {starter}{shlex.join([word, *behind])}"
    return "write key=value (hpcml run --help lists the keys)"


def instead_of_flag(flag: str, value: str) -> str:
    """Return what to write instead of the *flag* of another program with its *value*."""
    name, keys = flag.lstrip("-").replace("-", "_").lower(), kinds_by_key(Run)
    meant = [key for key in nearest(name, keys) if key.startswith(_OF_JOBS)]
    called = [key for key in meant if (last := key.rpartition(".")[2]) == name or (name, last) in SYNONYMS]
    key = name if name in keys else next(iter(called), None)
    setting = "settings of a run have no dashes" + (f": write {key}={value}" if key else "")
    return f"{setting}; a flag of the program stands behind two dashes: hpcml run -- PROGRAM {flag} {value}"


def _refuse_expanded(overrides: Sequence[str]) -> None:
    """Raise `ConfigError` for words that a shell made of ``seed={0,1}``, of which the last alone would count."""
    for key, of in itertools.groupby(overrides, key=lambda word: word.partition("=")[0]):
        values = [word.partition("=")[2] for word in of]
        if len(values) > 1 and not any(sign in value for value in values for sign in ",("):  # no sweep
            words = " ".join(f"{key}={value}" for value in values)
            raise ConfigError(
                f"{words}: of these the last would count, and a shell makes them of {{...}}: the values of a sweep "
                f"stand without braces: {key}={','.join(values)}"
            )


def _plain_group(word: str) -> str:
    """These have a default, so Hydra wants ``cluster=x``; people write ``+cluster=x`` just as often."""
    return word[1:] if word.startswith(tuple(f"+{group}=" for group in _WITH_DEFAULT)) else word


def _study(word: str, own: Path | None) -> str:
    """Let ``+experiment=x`` choose a study, unless the user has a group of that name.

    hpcml cannot have one: Hydra would take every ``experiment=x`` for a choice in it, and that names a run's folder.
    """
    if own is not None and (own / "experiment").is_dir():
        return word
    return f"study={word.removeprefix('+experiment=')}" if word.startswith("+experiment=") else word


def _verbatim(word: str, key: str) -> str:
    """A command line is full of characters that Hydra's grammar reads as its own: quote what came unquoted."""
    value = word.removeprefix(f"{key}=")
    if value == word or value[:1] in ("'", '"') or value.startswith(("choice(", "null")):
        return word
    return f"{key}={in_quotes(value)}"


def for_shell(key: str, text: str) -> str:
    """Return the word that gives *key* one *text*, as it is typed in a shell.

    >>> print(for_shell("data.path", "/data/a,b"), for_shell("data.path", "/data/a"))
    'data.path="/data/a,b"' data.path=/data/a
    """
    return f"{key}={text}" if re.fullmatch(r"[\w./:@+-]+", text) else shlex.quote(f"{key}={in_quotes(text)}")


def in_quotes(text: str) -> str:
    r"""Quote for Hydra's override grammar, where a backslash is special only in front of a quote.

    >>> in_quotes('say "it"')
    '"say \\"it\\""'
    """
    escaped = re.sub(r'(\\*)"', r'\1\1\\"', text)
    tail = escaped[len(escaped.rstrip("\\")) :]
    return f'"{escaped}{tail}"'


_NOISE = re.compile(
    r"^(object_type=|reference_type=|Set the environment variable HYDRA_FULL_ERROR|Config search path:|provider=)"
)
_UNKNOWN_KEY = re.compile(
    r"(?:Could not override '([^']+)'|^unknown key (\S+)|Could not delete from config\. '([^']+)' does not exist)"
)
_UNKNOWN_OPTION = re.compile(
    r"Could not find '(?P<choice>[^']+)'\s+Available options in '(?P<group>[^']+)':(?P<names>(?:\n\t\S+)*)"
)
_IN_QUOTES = re.compile(r'"((?:\\.|[^"\\])*)"')
_LIST = re.compile(r"Ambiguous value for argument '(?P<word>[^']+)'")
_MERGING = re.compile(r"Error merging override (?P<word>[^\n]+)")
_NOT_CONVERTED = re.compile(
    r"Error merging override (?P<word>.+?)\n.*Value '(?P<value>.*)' of type "
    r"'\w+' could not be converted to (?P<type>\w+)",
    re.DOTALL,
)
_NO_TEXT = re.compile(r"Error merging override (?P<word>[^\n]+)\n.*Cannot convert '(?:list|dict)' to string")
_NOT_OPTIONAL = re.compile(r"Error merging override (?P<word>\S+)\n.*is not Optional")
_NO_REFERENCE = re.compile(r"Interpolation key '(?P<key>[^']+)' not found")
_NO_BOOL = re.compile(r"Error merging override (?P<key>[^=]+)=(?P<value>.*)\n.*is not a valid bool")
_NO_CHOICE = re.compile(
    r"Error merging override (?P<key>[^=]+)=(?P<value>.*)\n.*Invalid value '.*', expected one of \[(?P<names>[^\]]*)\]"
)
_NO_VARIABLE = re.compile(r"Environment variable '(?P<name>[^']+)' not found")
_NO_CONTAINER = re.compile(
    r"Error merging override (?P<key>[^=]+)=(?P<value>.*)\n"
    r".*(?:is not a ListConfig|Cannot assign \w+ to Dict|is not a subclass of|Cannot merge \w+ with)"
)
_UNKNOWN_FIELD = re.compile(
    r"Could not override '(?P<key>[^']+)'.*\n.*Key '(?P<name>[^']+)' not in '(?P<type>\w+)'", re.DOTALL
)
_IN_FILE = re.compile(
    r"In '(?P<file>[^']+)': \w+ raised while composing config:\n(?P<said>[^\n]*)\n\s*full_key: ?(?P<key>\S*)"
)
_NOT_IN_TYPE = re.compile(r"Key '(?P<name>[^']+)' not in '(?P<type>\w+)'")
_NOT_OF_TYPE = re.compile(r"\w+ is not a subclass of (?P<type>\w+)\. value: ")
_VALUE = re.compile(r"Value '(?P<plain>.*)' (?:of type|is not)|value: (?P<last>.*)$|to string: '(?P<text>.*)'$")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")  # as behind the --
_OF_RECIPES = ("training.", "model.", "data.", "layout.", "profile.")  # that a program of the user's own has no use for
_ONE_ITEM = re.compile(r"[\w./*=@+-]*\w[\w./*=@+-]*")  # that stands in Hydra's brackets as it is
_MEANT = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false"}


def in_one_line(message: str, cause: str = "", *, schema: type | None = None, is_own: bool = False) -> str:
    r"""Join the informative lines of Hydra's *message* and its *cause* into one.

    For a misspelt key the nearest keys are suggested; *schema* is the dataclass with the right ones, and *is_own* says
    that a program of the user's own is started, which may have an option of that name. Lines that tell of Hydra's
    inside are dropped, and lines that repeat others. Commands print the result behind "Error:".

    >>> in_one_line("Key 'sed' is not in struct\n    full_key: sed\n    object_type=Run")
    "Key 'sed' is not in struct"
    """
    if (told := _translated(f"{message}\n{cause}", schema, is_own=is_own)) is not None:
        return " ".join(told.split())
    lines: list[str] = []
    for line in f"{message}\n{cause}".splitlines():
        text = " ".join(line.split())
        if text and not _NOISE.match(text) and text not in lines and not _said(text, lines):
            lines.append(text)
    return " ".join(line if line.endswith((".", "?", ":", ",")) else f"{line};" for line in lines).rstrip("; ")


def _translated(message: str, schema: type | None, *, is_own: bool) -> str | None:
    """Return what *message* says in the words of a command line; None for what Hydra says well enough."""
    told: str | None = None
    if found := _UNKNOWN_OPTION.search(message):
        group, names = found["group"], found["names"].split()
        name = found["choice"].removeprefix(f"{group}/")
        guess = _image(name) if group == "container" else None
        if guess is None and name:
            guess = did_you_mean(name, names)
        told = f"Could not find '{group}/{name}': {f'{guess} ' if guess else ''}{group} is one of {', '.join(names)}"
    elif found := _LIST.search(message):
        key, _, value = found["word"].partition("=")
        value = _IN_QUOTES.sub(lambda part: part[1].replace('\\"', '"'), value)  # typed, or put there by `readable`
        one = (_image(value) if key == "container" else None) or f"write {for_shell(key, value)} for one"
        told = f"{key}={value} has several values: add -m (--multirun) for a sweep, or {one.rstrip(';')}"
    elif found := _NO_VARIABLE.search(message):
        name = found["name"]
        told = f"${{oc.env:{name}}}: {name} is not set in this shell: export it, or write ${{oc.env:{name},DEFAULT}}"
    elif (found := _IN_FILE.search(message)) and schema is not None:
        told = _translated_file(found, schema)
    elif (told := _translated_value(message, schema)) is None and schema is not None:
        told = _translated_key(message, schema, is_own=is_own)
    return told


def _translated_value(message: str, schema: type | None) -> str | None:
    """Return what a key takes that was given something else."""
    told: str | None = None
    if (found := _MERGING.search(message)) and schema is not None and (below := _below_a_value(found["word"], schema)):
        told = below
    elif found := _NOT_CONVERTED.search(message):
        key = found["word"].partition("=")[0]
        told = f"{key}={found['value']}: {key} is {_MEANT.get(found['type'], found['type'])}"
        if ends := _RANGE.fullmatch(found["value"]):
            told += f"; a range of them is written -m '{key}=range({ends[1]},{int(ends[2]) + 1})'"
    elif found := _NO_TEXT.search(message):
        told = f"{found['word']}: {found['word'].partition('=')[0]} is one text: leave out the brackets"
    elif found := _NOT_OPTIONAL.search(message):
        key = found["word"].partition("=")[0].lstrip("+")
        told = f"{found['word']}: {key} needs a value: leave the word out for its default"
    elif found := _NO_BOOL.search(message):
        told = f"{found['key']}={found['value']}: {found['key']} is {_MEANT['Boolean']}"
    elif found := _NO_CHOICE.search(message):
        key, names = found["key"].lstrip("+"), found["names"].split(", ")
        guess = did_you_mean(found["value"], names)
        told = f"{found['key']}={found['value']}: {key} is one of {', '.join(names)}{f'; {guess}' if guess else ''}"
    elif (
        (found := _NO_CONTAINER.search(message))
        and schema is not None
        and (form := _form(found["key"], schema, found["value"]))
    ):
        told = f"{found['key']}={found['value']}: {found['key']} {form}"
    return told


def _below_a_value(word: str, schema: type) -> str | None:
    """Return what is wrong with *word* where its key goes on below another's value, as that of ``seed.x=1``."""
    key, _, value = word.partition("=")
    names = key.lstrip("+").split(".")
    for above in (".".join(names[:depth]) for depth in range(1, len(names))):
        kind = _kind_of(above, schema)
        if kind is not None and not _has_names_below(kind):
            return f"{word}: {above} has a value, and nothing below it: write {above}={value}"
    return None


def _translated_file(found: re.Match[str], schema: type) -> str | None:
    """Return what is wrong with a file of options, by its key; None for what Hydra says well enough."""
    file, said, key = f"{found['file']}.yaml", found["said"], found["key"]
    if unknown := _NOT_IN_TYPE.match(said):
        kind = _kind_of(key.rpartition(".")[0], schema)
        names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
        guess = did_you_mean(unknown["name"], names) or f"one of {', '.join(names)}"
        return f"{file}: unknown key {key}: {guess}"
    kinds = kinds_by_key(schema)
    if not key and (other := _NOT_OF_TYPE.search(said)):
        key = next((each for each, kind in kinds.items() if getattr(kind, "__name__", "") == other["type"]), "")
    if not key and "ListConfig" in said:
        below = f"{found['file'].partition('/')[0]}."
        sections = [each for each, kind in kinds.items() if each.startswith(below) and _has_names_below(kind)]
        return (
            f"{file}: there is a list where names with values below them belong: so are {', '.join(sections)} written"
        )
    if not key or (form := _form_in_file(_kind_of(key, schema))) is None:
        return None
    value = next((text for each in _VALUE.finditer(said) for text in each.groups() if text is not None), None)
    return f"{file}: {'' if value is None else f'{key}={value}: '}{key} is {form}"


def _kind_of(key: str, schema: type) -> object:
    """Return the type of *key*, None left out of it; None for a key that there is not."""
    kind: object = schema
    for name in key.split("."):
        if isinstance(kind, type) and is_dataclass(kind):
            kind = kinds_by_key(kind).get(name)
        else:
            kind = get_args(kind)[1] if get_origin(kind) is dict else None
    return kind


def _has_names_below(kind: object) -> bool:
    return is_dataclass(kind) or get_origin(kind) is dict


def _form_in_file(kind: object) -> str | None:
    """Return how a value of this *kind* is written in YAML; None for what is no value."""
    if isinstance(kind, type) and is_dataclass(kind):
        return f"a section, with keys of its own: {', '.join(field.name for field in fields(kind))}"
    if get_origin(kind) is dict:
        return "a section, with names of yours and values below them: {NAME: ...}"
    if get_origin(kind) is list:
        return "a list: [a, b]"
    return {int: _MEANT["Integer"], float: _MEANT["Float"], bool: _MEANT["Boolean"], str: "one text"}.get(kind)  # type: ignore[call-overload,no-any-return]


def _image(name: str) -> str | None:
    """Return how the image *name*, a file or one of a registry, is written; None where it looks like neither."""
    if name.endswith(".sif"):
        return f"for an image's file write +container=sif {for_shell('container.path', name)};"
    image, _, tag = name.removeprefix("docker://").partition(":")
    if not name.startswith("docker://") and not tag and "/" not in image:
        return None
    words = [f"container.image={image}", *([f"container.tag={tag}"] if tag else [])]
    return f"for an image of a registry write +container=docker {' '.join(words)};"


def _form(key: str, schema: type, value: str) -> str | None:
    """Return how the list, mapping or section *key*, which got *value*, is written; None for what is neither."""
    kinds = kinds_by_key(schema)
    kind = kinds.get(key)
    if is_dataclass(kind):
        below = [each for each in kinds if each.startswith(f"{key}.")]
        return f"is a section: set one of its keys, {', '.join(below)}"
    if get_origin(kind) is list:
        (each,) = get_args(kind)
        if is_dataclass(each):
            inside = f"{{{', '.join(f'{field.name}: ...' for field in fields(each)[:2])}}}"
        else:
            inside = value if _ONE_ITEM.fullmatch(value) else "a,b"
        return f"is a list: write '{key}=[{inside}]'"
    return f"has names below it: write {key}.NAME=VALUE" if get_origin(kind) is dict else None


def _translated_key(message: str, schema: type, *, is_own: bool) -> str | None:
    kinds = kinds_by_key(schema)
    known = list(kinds)
    if (found := _UNKNOWN_FIELD.search(message)) and found["key"] in kinds:
        kind = kinds[found["key"]]
        each = get_args(kind)[0] if get_origin(kind) is list else kind
        names = [field.name for field in fields(each)] if is_dataclass(each) else []
        guess = did_you_mean(found["name"], names) or f"one of {', '.join(names)}"
        return f"{found['key']}: unknown key {found['name']}: {guess}"
    unknown, reference = _UNKNOWN_KEY.search(message), _NO_REFERENCE.search(message)
    key = next((key for key in (unknown.groups() if unknown else ()) if key), None)
    if key is not None and key not in known:
        return f"unknown key {key}: {_meant_by(key, known, is_own=is_own)}"
    if reference:
        guess = did_you_mean(reference["key"], known) or "hpcml run --help lists the keys"
        return f"${{{reference['key']}}}: there is no key {reference['key']} to refer to; {guess}"
    return None


def _meant_by(key: str, known: Sequence[str], *, is_own: bool) -> str:
    """Return what somebody may have meant by *key*, none of the *known* ones; *is_own*: of their program, perhaps."""
    if not is_own or "." in key:
        return did_you_mean(key, known) or "hpcml run --help lists the keys"
    guess = did_you_mean(key, [each for each in known if not each.startswith(_OF_RECIPES)])
    option = f"an option of your program stands behind the --: hpcml run [-m] -- python train.py --{key} VALUE[,VALUE]"
    return f"{guess} {option[0].upper()}{option[1:]}" if guess else option


def _said(text: str, lines: list[str]) -> bool:
    return text.startswith("full_key: ") and any(text.removeprefix("full_key: ") in line for line in lines)


def kinds_by_key(schema: type, prefix: str = "") -> dict[str, Any]:
    """Return the type of each key, None left out of it."""
    hints = get_type_hints(schema)
    kinds: dict[str, Any] = {}
    for field in fields(schema):
        kind, *others = [each for each in get_args(hints[field.name]) if each is not type(None)] or [None]
        is_optional = type(None) in get_args(hints[field.name]) and not others
        kinds[f"{prefix}{field.name}"] = kind if is_optional else hints[field.name]
        if is_dataclass(hints[field.name]):
            kinds |= kinds_by_key(hints[field.name], f"{prefix}{field.name}.")
    return kinds
