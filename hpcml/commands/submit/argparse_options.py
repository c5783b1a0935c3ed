"""What a script's own argparse would end it with at once: an option that it has not, or a value that it does not take.

The script is read and not executed. Nothing is said where anybody else may have a say in what is accepted: of a parser
that is handed on, has commands of its own, takes options that are made up while the program runs, or leaves unknown
ones to others; and where the script looks into its words itself, or may end or go another way before the parser reads
them.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcml.commands.submit.python_start import TOO_DEEP, own_sources, parsed, text_of
from hpcml.config.guess import did_you_mean, nearest

_OF_PARSERS = frozenset({"description", "prog", "usage", "epilog", "formatter_class", "add_help", "allow_abbrev"})
_GROUPS = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
_HARMLESS = frozenset(
    {"set_defaults", "get_default", "print_help", "print_usage", "format_help", "format_usage", "error", "exit"}
)
_TOLD = frozenset({"description", "prog", "usage", "epilog", "formatter_class"})  # may be set later
_SHOW = frozenset({"print", "len", "str", "repr", "join", "debug", "info"})  # words, and change nothing by them
_END = frozenset({"exit", "_exit", "quit", "abort", "SystemExit", "execv", "execve", "execvp", "execvpe"})
_ALWAYS = (  # execute what is in them, wherever they are executed
    *(ast.Expr, ast.Assign, ast.AnnAssign, ast.Return, ast.Raise),
    *(ast.Call, ast.keyword, ast.Starred, ast.Attribute, ast.Tuple),
)
_IS_MAIN = "__name__ == '__main__'"
_NO_VALUE = frozenset({"store_true", "store_false", "store_const", "append_const", "count", "help", "version"})
_ONE_VALUE = frozenset({"store", "append"})
_NUMBER = re.compile(r"-\.?\d")  # a negative one, or what argparse may take for it
_LIST = re.compile(r",|\.\.")  # of values, in hpcml's words
_TYPES: Mapping[str, type] = {"int": int, "float": float}
_HELP = ("-h", "--help")
_MOST_TOLD = 12
_MOST_BYTES = 1 << 18  # of a script, which take two seconds
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
    if source is None or len(source) > _MOST_BYTES or b"ArgumentParser" not in source:
        return None
    try:
        return _Reading(parsed(source), script.parent).options()
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
        has_value_in_it = flag != names[0] and word[1] != "-"  # -j4: the word behind it is another's
        option = options.known[names[0]] if len(names) == 1 and not has_value_in_it else None
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

    def __init__(self, tree: ast.Module, folder: Path) -> None:
        self._folder = folder
        self._nodes = list(ast.walk(tree))
        self._parents = {child: node for node in self._nodes for child in ast.iter_child_nodes(node)}
        self._bound: defaultdict[str, list[ast.AST]] = defaultdict(list)  # by name: what gives it a meaning
        self._read: defaultdict[str, list[ast.Name]] = defaultdict(list)  # by name: where it is used
        for node in self._nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._read[node.id].append(node)
            elif (name := _bound_by(node)) is not None:
                self._bound[name].append(node)
        self._called: dict[ast.FunctionDef, bool] = {}
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
        """Raise where the words may be changed, or something depends on them, before the parser reads them."""
        for node in self._nodes:
            is_code = isinstance(node, ast.Name) and node.id == "exec"
            is_words = isinstance(node, ast.Constant) and node.value in ("argv", "sys.argv")  # of setattr, or a mock
            if is_code or is_words or (_name_of(node) == "argv" and not self._is_only_shown(node)):
                raise _UncertainError
            if isinstance(node, ast.Import | ast.ImportFrom) and any(
                b"argv" in source for source in own_sources(node, [self._folder])
            ):
                raise _UncertainError

    def _is_only_shown(self, argv: ast.AST) -> bool:
        """Tell whether the words are given to the parser or to who reads the output, and to nothing else."""
        around = self._parents[argv]
        if isinstance(around, ast.Subscript) and around.value is argv and isinstance(around.ctx, ast.Load):
            if _literal(around.slice) == 0:
                return True
            argv, around = around, self._parents[around]
        if isinstance(around, ast.keyword):
            around = self._parents[around]
        is_given = isinstance(around, ast.Call) and _name_of(around.func) in (*_SHOW, "parse_args")
        return is_given or isinstance(around, ast.FormattedValue)

    def _is_argparses(self, maker: ast.expr) -> bool:
        """Tell whether *maker* is what argparse calls so: no class of the same name of another module."""
        wanted = "argparse" if isinstance(maker, ast.Attribute) else "argparse.ArgumentParser"
        made = self._bound[ast.unparse(maker).partition(".")[0]]
        return bool(made) and all(isinstance(one, ast.alias) and self._origin(one) == wanted for one in made)

    def _origin(self, alias: ast.alias) -> str:
        statement = self._parents[alias]
        if isinstance(statement, ast.ImportFrom):
            return f"{'.' * statement.level}{statement.module or ''}.{alias.name}"
        return alias.name

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
            if not _takes_all_words(call) or not self._is_executed(call):
                raise _UncertainError
            return True
        elif attribute.attr not in _HARMLESS:
            raise _UncertainError
        return False

    def _is_executed(self, node: ast.AST) -> bool:
        """Tell whether *node* is executed whenever the script is: under no condition, behind nothing that ends it."""
        around = self._parents[node]
        while not isinstance(around, ast.Module | ast.FunctionDef):
            if isinstance(around, ast.If):
                if ast.unparse(around.test) != _IS_MAIN or not _is_reached(node, around.body):
                    return False
            elif not isinstance(around, _ALWAYS):
                return False
            node, around = around, self._parents[around]
        is_called = isinstance(around, ast.Module) or self._is_called(around)
        return is_called and _is_reached(node, around.body)

    def _is_called(self, function: ast.FunctionDef) -> bool:
        if function not in self._called:
            self._called[function] = False  # by itself alone
            calls = [call for name in self._read[function.name] if _is_call_of(call := self._parents[name], name)]
            is_one = len(self._bound[function.name]) == 1
            self._called[function] = is_one and any(map(self._is_executed, calls))
        return self._called[function]

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

    def _places_of(self, name: str) -> Sequence[ast.Name]:
        if not all(map(self._is_given_a_parser, self._bound[name])):
            raise _UncertainError
        return self._read[name]

    def _is_given_a_parser(self, target: ast.AST) -> bool:
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
        if around is None or around.decorator_list or len(self._bound[around.name]) != 1:
            raise _UncertainError
        if around.name in self._makers:
            return
        self._makers.add(around.name)
        for name in self._read[around.name]:
            if not _is_call_of(call := self._parents[name], name):
                raise _UncertainError
            yield call

    def _add(self, call: ast.Call) -> None:
        names = [_literal(name) for name in call.args]
        settings = _keywords(call)
        action = settings.get("action")
        if not all(isinstance(name, str) for name in names) or _may_take_all(settings) or not self._keeps_names(action):
            raise _UncertainError
        option = self._option(call.lineno, settings)
        for name in (name for name in names if isinstance(name, str) and name.startswith("-")):
            self._known[name] = None if name in self._known else option
            if name.startswith("--") and "action" in settings and _literal(settings["action"]) is _ABSENT:
                self._known.setdefault(f"--no-{name[2:]}", None)  # argparse.BooleanOptionalAction makes it

    def _keeps_names(self, action: ast.expr | None) -> bool:
        """Tell whether an argument has the names alone that it is given: an *action* may make more of them."""
        if action is None or _name_of(action) == "BooleanOptionalAction" or isinstance(_literal(action), str):
            return True
        made = self._bound[ast.unparse(action)]
        return len(made) == 1 and isinstance(made[0], ast.ClassDef) and _is_plain_action(made[0])

    def _option(self, line: int, settings: Mapping[str, ast.expr]) -> _Option:
        action = _literal(settings["action"]) if "action" in settings else "store"
        if action in _NO_VALUE or action not in _ONE_VALUE or "nargs" in settings:
            return _Option(line)
        kind = settings.get("type")
        called = kind.id if isinstance(kind, ast.Name) and not self._bound[kind.id] else None
        if kind is not None and called not in ("int", "float", "str"):
            return _Option(line)
        choices = _literal(settings["choices"]) if "choices" in settings else ()
        return _Option(
            line,
            takes_one=True,
            type=called if called in _TYPES else None,
            choices=tuple(choices) if isinstance(choices, list | tuple) else (),
        )


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


def _bound_by(node: ast.AST) -> str | None:
    """Return the name to which *node* gives a meaning."""
    match node:
        case ast.Name(id=name) | ast.arg(arg=name):
            return name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name
        case ast.alias(name=name, asname=other):
            return other or name.partition(".")[0]
    return None


def _is_call_of(node: ast.AST, name: ast.Name) -> bool:
    return isinstance(node, ast.Call) and node.func is name


def _is_reached(node: ast.AST, body: Sequence[ast.stmt]) -> bool:
    """Tell whether *node* is one of *body*, and no statement before it may end the script or its function."""
    for statement in body:
        if statement is node:
            return True
        waiting: list[ast.AST] = [statement]
        while waiting:
            one = waiting.pop()
            if isinstance(one, ast.Return) or _name_of(one) in _END:
                return False
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                waiting += ast.iter_child_nodes(one)
    return False


def _is_plain_action(made: ast.ClassDef) -> bool:
    is_init = (isinstance(one, ast.FunctionDef) and one.name == "__init__" for one in made.body)
    return all(_name_of(base) == "Action" for base in made.bases) and not any(is_init)
