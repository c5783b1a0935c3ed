"""What a script's own argparse would end it with at once: an option that it has not, or a value that it does not take.

The script is read and not executed. Nothing is said where anybody else may have a say in what is accepted: of a parser
that is handed on, has commands of its own, takes options that are made up while the program runs, or leaves unknown
ones to others, and where the script changes its words first.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.submit.python_start import TOO_DEEP, parsed, text_of
from hpcml.config.guess import did_you_mean, nearest

_OF_PARSERS = frozenset({"description", "prog", "usage", "epilog", "formatter_class", "add_help", "allow_abbrev"})
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_HARMLESS = frozenset(
    {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "format_usage", "error", "exit"}
)
_TOLD = frozenset({"description", "prog", "usage", "epilog", "formatter_class"})  # may be set later
_CHANGES = frozenset({"append", "extend", "insert", "remove", "pop", "clear"})  # what a list of words does
# Of those that read the command line, or what stands in for it; a script that has one may have its options from there
_OTHER_READERS = frozenset(
    {"absl", "click", "configargparse", "docopt", "fire", "gflags", "hydra", "jsonargparse", "sacred", "typer", "tyro"}
)
_NO_VALUE = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})
_ONE_VALUE = frozenset({"store", "append"})
_NUMBER = re.compile(r"-\.?\d")  # a negative one, or what argparse may take for it
_LIST = re.compile(r",|\.\.")  # of values, in hpcml's words
_TYPES: Mapping[str, type] = {"int": int, "float": float}
_HELP = ("-h", "--help")
_MOST_TOLD = 12
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class _Option:
    line: int
    takes_one: bool = False
    type: str | None = None  # int or float; None: a text, or nobody knows
    choices: tuple[object, ...] = ()  # empty where all is taken, or nobody knows what


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a script, each by all its names; a name that is made in two places has None."""

    line: int  # of the parser
    known: Mapping[str, _Option | None]
    may_be_short: bool = True  # --opt for --optimizer


def options_of(script: Path) -> Options | None:
    """Return the options that the parser of *script* takes; None where that is not certain."""
    source = text_of(script)
    if source is None or b"ArgumentParser" not in source:
        return None
    try:
        return _Reading(parsed(source)).options()
    except (_UncertainError, SyntaxError, *TOO_DEEP):
        return None


def misfit(options: Options, words: Sequence[str]) -> str | None:
    """Return what is wrong with the first of *words*, those behind a script, that its *options* do not take."""
    for at, word in enumerate(words):
        if word == "--":
            return None
        if not word.startswith("-") or len(word) == 1 or _NUMBER.match(word) or re.search(r"\s", word):
            continue
        flag, has_value, value = word.partition("=")
        names = _meant(options, word, flag)
        if not names:
            return _unknown(options, flag)
        option = options.known[names[0]] if len(names) == 1 else None
        if option is not None and option.takes_one:
            behind = words[at + 1] if at + 1 < len(words) else "-"
            given = value if has_value else behind
            if (has_value or not behind.startswith("-")) and (wrong := _wrong_value(option, given)):
                return f"{flag} {given}: {wrong} (line {option.line})"
    return None


def _meant(options: Options, word: str, flag: str) -> list[str]:
    """Return the names that argparse may take *word* for; none: it is unknown."""
    for exact in (word, flag):
        if exact in options.known:
            return [exact]
    if word[1] == "-":
        return [name for name in options.known if options.may_be_short and name.startswith(flag)]
    return [name for name in options.known if name == word[:2] or name.startswith(flag)]


def _unknown(options: Options, flag: str) -> str:
    bare = {name.lstrip("-"): name for name in options.known}  # dashes alone make two names alike
    hidden = {*_HELP, *(f"--no-{name}" for name in bare)}
    shown = [name for name in sorted(options.known) if name not in hidden]
    near = " or ".join(bare[name] for name in nearest(flag.lstrip("-"), bare))
    more = f" and {len(shown) - _MOST_TOLD} more" if len(shown) > _MOST_TOLD else ""
    has = f"it has {', '.join(shown[:_MOST_TOLD])}{more}" if shown else "it has none"
    return f"{flag} is no option of its parser (line {options.line}): {f'did you mean {near}?' if near else has}"


def _wrong_value(option: _Option, value: str) -> str | None:
    known: object = value
    if option.type is not None:
        try:
            known = _TYPES[option.type](value)
        except ValueError:
            several = "; -m in front of the -- makes a run of each, without --as-is" if _LIST.search(value) else ""
            return f"it is to be {'a whole number' if option.type == 'int' else 'a number'}{several}"
    if option.choices and known not in option.choices:
        choices = list(map(str, option.choices))
        near = did_you_mean(value, choices)
        return f"it is one of {', '.join(choices)}{f'; {near}' if near else ''}"
    return None


class _UncertainError(Exception):
    """Nobody can say what the parser takes before the script is executed."""


class _Reading:
    """Reads one script."""

    def __init__(self, tree: ast.Module) -> None:
        self._nodes = list(ast.walk(tree))
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._names: set[str] = set()  # of parsers and of groups of one
        self._makers: set[str] = set()  # functions that return the parser
        self._known: dict[str, _Option | None] = {}

    def options(self) -> Options:
        """Return what the parser takes; raises `_UncertainError`."""
        self._refuse_others()
        made = [node for node in self._nodes if isinstance(node, ast.Call) and _name_of(node.func) == "ArgumentParser"]
        if len(made) != 1 or sum(_name_of(node) == "ArgumentParser" for node in self._nodes) != 1:
            raise _UncertainError
        (parser,) = made
        settings = _keywords(parser)
        if len(parser.args) > 1 or not settings.keys() <= _OF_PARSERS or not self._is_argparses(parser.func):
            raise _UncertainError
        self._follow(parser)
        for name in _HELP:
            self._known.setdefault(name, None)
        is_exact = "allow_abbrev" in settings and _literal(settings["allow_abbrev"]) is False
        return Options(line=parser.lineno, known=self._known, may_be_short=not is_exact)

    def _refuse_others(self) -> None:
        """Raise where something else than one parser reads the words, or where they are changed."""
        for node in self._nodes:
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                if not _OTHER_READERS.isdisjoint(name.partition(".")[0] for name in names):
                    raise _UncertainError
            if _name_of(node) == "argv" and not self._is_only_read(node):
                raise _UncertainError

    def _is_only_read(self, argv: ast.AST) -> bool:
        around = self._parents.get(argv)
        while isinstance(around, ast.Subscript) and around.value is argv:
            argv, around = around, self._parents.get(around)
        if isinstance(around, ast.Attribute) and around.attr in _CHANGES:
            return False
        return isinstance(getattr(argv, "ctx", None), ast.Load) and not isinstance(around, ast.alias)

    def _is_argparses(self, maker: ast.expr) -> bool:
        """Tell whether *maker* is what argparse calls so: no class of the same name of another module."""
        if isinstance(maker, ast.Attribute):
            return isinstance(maker.value, ast.Name) and maker.value.id == "argparse"
        return any(
            isinstance(node, ast.ImportFrom)
            and node.module == "argparse"
            and any(alias.name == "ArgumentParser" and alias.asname is None for alias in node.names)
            for node in self._nodes
        )

    def _follow(self, parser: ast.Call) -> None:
        """Follow the parser through its names, and take what is said of it."""
        waiting: list[ast.AST] = [parser]
        is_asked = False
        while waiting:
            node = waiting.pop()
            around = self._parents[node]
            if isinstance(around, ast.Attribute):
                is_asked |= self._attribute(around, waiting)
            elif isinstance(around, ast.Assign | ast.AnnAssign) and node is around.value:
                waiting += self._named(around)
            elif isinstance(around, ast.Return):
                waiting += self._returned(around)
            elif not isinstance(around, ast.Expr):
                raise _UncertainError  # handed on, or looked into
        if not is_asked:
            raise _UncertainError

    def _attribute(self, attribute: ast.Attribute, waiting: list[ast.AST]) -> bool:
        """Take what is done by an attribute of the parser or of a group; return whether the words are read there."""
        call = self._parents[attribute]
        if isinstance(attribute.ctx, ast.Store) and attribute.attr in _TOLD:
            return False
        if not isinstance(call, ast.Call) or call.func is not attribute:
            raise _UncertainError
        if attribute.attr == "add_argument":
            self._add(call)
        elif attribute.attr in _GROUPS:
            waiting.append(call)
        elif attribute.attr == "parse_args":
            if not _takes_all_words(call) or self._may_not_happen(call):
                raise _UncertainError
            return True
        elif attribute.attr not in _HARMLESS:
            raise _UncertainError
        return False

    def _may_not_happen(self, node: ast.AST) -> bool:
        """Whether *node* is done under a condition, may fail, or is in a function that the script does not call."""
        while (around := self._parents.get(node)) is not None:
            if isinstance(around, ast.If) and "__name__" not in ast.unparse(around.test):
                return True
            if isinstance(around, ast.Try | ast.With | ast.IfExp | ast.BoolOp | ast.Lambda | ast.ClassDef):
                return True
            if isinstance(around, ast.FunctionDef) and not self._is_called(around.name):
                return True
            node = around
        return False

    def _is_called(self, name: str) -> bool:
        return any(isinstance(node, ast.Call) and _name_of(node.func) == name for node in self._nodes)

    def _named(self, assigned: ast.Assign | ast.AnnAssign) -> Iterator[ast.AST]:
        """Yield all places where the name that a parser gets is read; raises where it is also something else's."""
        targets = assigned.targets if isinstance(assigned, ast.Assign) else [assigned.target]
        for target in targets:
            if not isinstance(target, ast.Name):
                raise _UncertainError
            if target.id in self._names:
                continue
            self._names.add(target.id)
            yield from self._places_of(target.id)

    def _places_of(self, name: str) -> Iterator[ast.Name]:
        for node in self._nodes:
            if isinstance(node, ast.arg) and node.arg == name:
                raise _UncertainError
            if isinstance(node, ast.Name) and node.id == name:
                if isinstance(node.ctx, ast.Load):
                    yield node
                elif not self._is_given_a_parser(node):
                    raise _UncertainError

    def _is_given_a_parser(self, target: ast.Name) -> bool:
        around = self._parents[target]
        if not isinstance(around, ast.Assign | ast.AnnAssign) or not isinstance(around.value, ast.Call):
            return False
        called = _name_of(around.value.func)
        return called == "ArgumentParser" or called in _GROUPS or called in self._makers

    def _returned(self, statement: ast.Return) -> Iterator[ast.AST]:
        """Yield all calls of the function that returns the parser."""
        around: ast.AST | None = statement
        while around is not None and not isinstance(around, ast.FunctionDef):
            around = self._parents.get(around)
        if around is None or around.decorator_list or not isinstance(self._parents[around], ast.Module):
            raise _UncertainError
        if around.name in self._makers:
            return
        self._makers.add(around.name)
        for node in self._nodes:
            if _name_of(node) == around.name and isinstance(node, ast.Name | ast.Attribute):
                call = self._parents[node]
                if not isinstance(call, ast.Call) or call.func is not node:
                    raise _UncertainError
                yield call

    def _add(self, call: ast.Call) -> None:
        names = [_literal(name) for name in call.args]
        settings = _keywords(call)
        if not all(isinstance(name, str) for name in names) or _may_take_all(settings):
            raise _UncertainError
        option = _option(call.lineno, settings)
        for name in (name for name in names if isinstance(name, str) and name.startswith("-")):
            self._known[name] = None if name in self._known else option
            if name.startswith("--") and "action" in settings and _literal(settings["action"]) is _ABSENT:
                self._known.setdefault(f"--no-{name[2:]}", None)  # argparse.BooleanOptionalAction makes it


def _takes_all_words(parse_args: ast.Call) -> bool:
    """Tell whether the parser is given the words of the command line, and nobody else's."""
    given = [*parse_args.args, *(keyword.value for keyword in parse_args.keywords if keyword.arg == "args")]
    if len(given) != len(parse_args.args) + len(parse_args.keywords) or len(given) > 1:
        return False
    return not given or ast.unparse(given[0]) in ("sys.argv[1:]", "None")


def _may_take_all(settings: Mapping[str, ast.expr]) -> bool:
    """Tell whether the argument may take words that begin with a dash, and belong to another program."""
    if "" in settings:
        return True
    count = settings.get("nargs")
    return count is not None and _literal(count) in ("...", "A...", _ABSENT)


def _option(line: int, settings: Mapping[str, ast.expr]) -> _Option:
    action = _literal(settings["action"]) if "action" in settings else "store"
    if action in _NO_VALUE or action not in _ONE_VALUE or "nargs" in settings:
        return _Option(line)
    kind = settings.get("type")
    called = kind.id if isinstance(kind, ast.Name) else None
    if kind is not None and called not in ("int", "float", "str"):
        return _Option(line)
    choices = _literal(settings["choices"]) if "choices" in settings else ()
    return _Option(
        line,
        takes_one=True,
        type=called if called in _TYPES else None,
        choices=tuple(choices) if isinstance(choices, list | tuple) else (),
    )


def _keywords(call: ast.Call) -> dict[str, ast.expr]:
    """Return the keywords of *call*; those of ``**more`` have an empty name."""
    return {keyword.arg or "": keyword.value for keyword in call.keywords}


def _literal(node: ast.expr) -> object:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _ABSENT


def _name_of(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None
