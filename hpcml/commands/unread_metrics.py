"""What is advised where a program reported no metric: a rule for a line that it printed, a table that it wrote."""

from __future__ import annotations

import math
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import chain, pairwise, takewhile
from pathlib import Path, PurePath

from hpcml.agent.metrics.numbers import IN_CALL, number_or_share, plain
from hpcml.agent.metrics.reading import STEPS, Damaged
from hpcml.agent.metrics.sources import Source, is_wanted_by, reader_of
from hpcml.agent.metrics.tables import CsvTable
from hpcml.commands.logs import last_printed
from hpcml.commands.submit.launch import Launched
from hpcml.errors import HpcmlError
from hpcml.model.failure_causes import printed_lines
from hpcml.model.metric_goal import goal_by_name, is_duration_or_rate, is_loss
from hpcml.model.metric_sources import MetricFiles
from hpcml.runs.original import reached_files
from hpcml.runs.working_directory import written_files

_LONGEST = 400  # characters of a line, the last ones: what is longer is no report of a metric
_MOST_OF_HEADING = 1 << 16  # bytes
_MOST_LOOKED_AT = 20  # runs of one submission, whose files may each have a name of their own
_TEXTS = (".txt", ".log", ".out", ".dat", ".yaml", ".yml")  # of files with what others print
_MOST_OF_TEXT = 16 << 10  # bytes, at its end
_TRACKERS = {  # by their folders and files
    ".aim": "Aim",
    ".cometml-runs": "Comet",
    ".neptune": "Neptune",
    "swanlog": "SwanLab",
    **dict.fromkeys(("mlflow.db", "mlruns"), "MLflow"),
}
_LEADS_AWAY = {"WANDB_DIR": ("wandb", ".")}
_IS_AWAY = re.compile(r"/|(?!sqlite:///[^/])[a-z][\w+.-]*:")  # an absolute path, a server, another file
_SUFFIXES = (".csv", ".tsv", ".jsonl")  # of files that are read once `workload.metrics_from` names them
_COLUMNS = (".dat", ".txt", ".xvg", ".log")  # the same, where numbers stand below names: they may be anything else
_RESULTS = re.compile(
    r"(?:result|metric|score|scalar|histor|progress|eval)[^/]*\.json$", re.IGNORECASE
)  # other JSON is anything
_NAMEABLE = re.compile(r"[\w./ +,=@()&-]+")  # what neither a shell, nor Hydra, nor a pattern reads as something else
# Date and time in a name, by which the next run's will be another: "outputs/2026-11-26/08-34-15/history.jsonl"
_MOMENT = re.compile(
    r"(?<!\d)(?:20\d\d[-_.]?[01]\d[-_.]?[0-3]\d(?:[-_T. ]?[0-2]\d[-_.]?[0-5]\d(?:[-_.]?[0-5]\d)?)?"
    r"|[0-2]\d[-_.][0-5]\d[-_.][0-5]\d|1\d{9})(?!\d)"
)
_BARS = "|│┃║"  # between cells, as rich and others draw them
_CELLS = re.compile(rf"[^\s{_BARS}]+")
_WIDE_CELLS = re.compile(rf"[^\s{_BARS}]+(?: [^\s{_BARS}]+)*")  # with names of several words, as spaCy's LOSS TEXTCAT
_COLUMN = re.compile(r"[a-z_]\w*", re.ASCII)
_RULED = re.compile(r"[\s|+:=_\u2500-\u257f-]*")  # blank lines, and those below a heading
_NUMBER = re.compile(
    r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?(?:%|ms|s|m|h)?|\d+/\d+|\d+(?::\d\d){1,2}|nan", re.IGNORECASE
)
_DIGIT = re.compile(r"\d")
_MARK = re.compile(r"[^\w\s]{1,3}")  # in a row of the best epochs alone, as skorch's + of a checkpoint
_STEPS = (*STEPS, "loop", "cycle", "time_step")  # what heads the first column: elsewhere these may be values
# What is counted before a value, the finest first
_COUNTED = [
    re.compile(rf"({word})\W+\d", re.IGNORECASE)
    for word in ("step", "iteration", "iter", "epoch", "update", "episode", "round")
]
_AT_BEGIN = {  # of a line, as boosted trees number theirs, and what reads it
    re.compile(r"^\[\d+/\d+\](?=[\s:,])"): r"^\[(?P<step>\d+)/\d+\]",
    re.compile(r"^\[\d+\](?=\s)"): r"^\[(?P<step>\d+)\]",
    re.compile(r"^\d+:(?=\s)"): r"^(?P<step>\d+):",
}
_REWARD = r"rew|reward|rew\w*_mean|return|ep_?ret"
# A dropout_l1, a lambda_l2 and a bitmap are not measured
_NORM = r"(?:(?<![a-z_])|(?<=val_)|(?<=valid_)|(?<=test_)|(?<=eval_)|(?<=train_))l[12]"
_MEASURED = (
    r"loss(?:_[a-z]{1,12})?|acc\w*|error|(?<!std)err|score|ppl|perplexity|bleu|f1|auc|iou|(?<![a-z])map|mse|mae|rmse"
    rf"|{_NORM}|ndcg"
)
_MEASURED_TOO = r"cost|nll|elbo|cross.?entropy|likelihood|[wc]er|psnr|ssim|fid|dice|recall"  # after all of these
# What benchmarks are judged by.
_EACH = r"(?:/(?:gpu|device|node|rank|thread|process))?"
_WORK = r"(?!(?-i:[kKMGTPE]?FLOPs|flops)(?! *(?:/|per)))"  # of a model, which its summary counts, and no rate
_RATE = (
    rf"fom|{_WORK}[kmgtpe]?flops?(?:/s)?{_EACH}|bandwidth|throughput|performance"
    rf"|[a-z]+/s(?:ec|econd)?{_EACH}(?: +total)?"
)
_RESIDUAL = r"resid(?:ual)?s?(?: norm)?"  # of solvers
_OF_FIELDS = re.compile(
    r"(?P<words>\b[Ss]olving for +)(?P<field>\w[\w.]{0,40})(?P<rest>,? +(?:[A-Za-z]+ +){0,2}[Rr]esiduals? *[=:]? *)"
    r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?(?![\w.])"
)
_DATA = r"(?:val|valid|validation|test|eval|evaluation|dev)"
_HELD_OUT = re.compile(rf"(?<![A-Za-z]){_DATA}(?![A-Za-z])", re.IGNORECASE)
_TEST = re.compile(r"(?<![A-Za-z])test(?![A-Za-z])", re.IGNORECASE)
_VALIDATION = re.compile(r"(?<![A-Za-z])(?:val|valid|validation|dev)(?![A-Za-z])", re.IGNORECASE)
_BEST = re.compile(r"(?<![A-Za-z])(?:best|lowest|highest|minimum|maximum)(?![a-z])", re.IGNORECASE)  # of all steps
_LOSS_OF = re.compile(r"(?<![A-Za-z])(\w*loss_[a-z]{1,12})\W*$", re.IGNORECASE)  # loss_cls: a part, or loss_scale
# "train: 0.52 | valid: 0.57", of which the loss is understood
_OF_DATA = re.compile(
    rf"(?P<before>(?<![A-Za-z])(?:{_DATA}|train|training)[\"']? *[:=] *)[-+]?\d*\.\d+(?:[eEdD][-+]?\d+)?"
    r"(?![\w.%]|\s(?:m?s|sec|seconds|min|h)\b)",
    re.IGNORECASE,
)
_TIMES = re.compile(r"(?<![a-z])(?:times?|took|elapsed|duration)(?![a-z])[^|,;]{0,40}$", re.IGNORECASE)
_BEFORE_NUMBER = rf"(?:{IN_CALL})?(?P<list>\[)?[\"']?"
_NUMBER_ALONE = r"nan|[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?"  # matches in one way alone
_LEAST_ROWS = 3
_UNNAMED = re.compile(  # a step, and numbers that nothing names
    rf"\W{{0,9}}(?P<word>epoch|step|iteration|iter|round)?\W{{0,9}}(?P<step>\d{{1,15}})"
    rf"(?P<values>(?:[\s,;:|]+(?:{_NUMBER_ALONE}))+)\W{{0,9}}",
    re.IGNORECASE,
)
# What Optuna says of each trial of a study
_TRIAL = re.compile(r"Trial \d+ finished with value: \S+ .*Best is trial \d+ with value: \S*\d")
_OF_TRIALS = (
    r'{pattern: "Trial (?P<step>\d+) finished with value: (?P<trial_value>\S+) .*'
    r'Best is trial \d+ with value: (?P<best_value>\S*\d)"}'
)
_NAME_BEFORE = r"(?<!\w)[A-Za-z_](?:[A-Za-z_/.-]|(?<=[A-Za-z])\d{1,3}(?=[A-Za-z_])){0,60}"  # val_, charts/, f1_, a2c_
_OF_WHAT = r"(?: +(?:rating +)?(?:of|on|for|over|at|after)\b[\w' ]{0,60}?)? *(?:[:=|│┃║]|\bis\b:?|\bwas\b:?)"


def _line(measured: str) -> re.Pattern[str]:
    """Return what finds a name that ends in a word for what is *measured*, and a number.

    "Test set loss: 309.8", "val_acc=0.93", "Acc@1 0.000", "episodic_return=[16.]"; or the name goes on: "Accuracy of
    the network on the 10000 test images: 54 %", "The RMSE of prediction is: 0.445".
    """
    return re.compile(
        rf"(?P<before>(?:(?<!\w)(?:[A-Za-z][\w'-]{{0,30}} +){{1,8}}?)??"
        rf"(?:{_NAME_BEFORE})?(?:{measured})(?:@\d+(?:\.\d+)?)?[\"']?(?:{_OF_WHAT})? *)"
        r"(?:(?<=\W)|(?=\d*\.\d))"  # "loss0.5" is one, "mAP50" none
        rf"{_BEFORE_NUMBER}[-+]?(?:\d+\.?\d*|\.\d+)(?:[eEdD][-+]?\d+)?%?"
        r"(?![\w.]|\] {0,3}[:=])"  # of "loss [10] : (0.5, 1.0)" it is how many there were
        r"(?(list)(?! {0,3},))",  # of "loss: [0.9, 0.5]", a history, it is the first
        re.IGNORECASE,
    )


# Where there is a reward, a loss is a means to it.
_OF_RATE = re.compile(rf"(?<![a-z])(?:{_RATE}|{_MEASURED}|[kmgt]i?b/s)(?![a-z])", re.IGNORECASE)  # heads a column
_RATES = _line(_RATE)
_KINDS = (_line(_REWARD), _line(_MEASURED), _OF_DATA, _line(_MEASURED_TOO), _RATES, _line(_RESIDUAL))
# Of a benchmark that prints its rate, the error of its result is a check, and a rate of each thread a part of the rate
_CHECK = re.compile(r"(?:max(?:imum)? +)?err(?:or)? *(?:[:=]|is:?) *", re.IGNORECASE)
_OPERATIONS = re.compile(r"(?<![a-z])(?:fom|[kmgtpe]?(?:fl)?ops?(?:/s(?:ec)?)?)(?![a-z])", re.IGNORECASE)
_OF_EACH = re.compile(r"/(?:gpu|device|node|rank|thread|process)\b", re.IGNORECASE)
# What any other program prints: a name and a number with a fraction, which counts, versions and sizes have not
_NAMED = re.compile(
    r"(?P<before>(?:(?<!\w)(?:[A-Za-z][\w'()/-]{0,30} +){1,5}?)??"
    r"_{0,2}[A-Za-z][\w./()-]{0,39}(?: *[(\[][\w./-]{1,20}[)\]])? *[:=] *)"
    r"[-+]?(?:\d+\.\d*|\.\d+|\d+(?=[eEdD][-+]?\d))(?:[eEdD][-+]?\d+)?(?![\w.%])"
)
_NO_RESULT = re.compile(  # what it uses, and settings
    r"(?<![a-z])(?:version|memory|mem|rss|used|gi?b|mi?b|tol\w*|eps\w*|dt|cfl|lr|learning.?rate|lambda|alpha|beta|gamma"
    r"|momentum|dropout|decay|step.?size|seed|[kmgtpe]?(?:flops|macs)|params|parameters)(?![a-z])",
    re.IGNORECASE,
)
_LOSS = _line(r"loss(?:_[a-z]{1,12})?|nll|perplexity|ppl")


def advice(mute: Sequence[Launched], environ: Mapping[str, str]) -> str:
    """Return in words what would make hpcml read a metric of the runs *mute*, whose program reported none.

    *environ* is that of the submission, which the program has got.
    """
    elsewhere = "".join(f"{line}; " for line in _taken_elsewhere(mute[0], environ))
    return f"{elsewhere}{_advice(mute)}"


def _taken_elsewhere(launched: Launched, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each variable by which a tracker that the program uses writes outside of the run."""
    plan = launched.manifest.plan
    told = {**environ, **{name: value or "" for name, value in plan.environment.items()}}
    set_so = [name for name in _LEADS_AWAY if _IS_AWAY.match(told.get(name, ""))]
    if not set_so:
        return
    texts = [last_printed(launched.run_dir), *reached_files(plan.argv, Path(plan.cwd)).values()]
    for name in set_so:
        library, instead = _LEADS_AWAY[name]
        if any(library in text for text in texts):
            yield (
                f"{name} takes what the program tells {library} out of the run, where it is not read: "
                f"workload.env.{name}={instead} keeps it there"
            )


def _advice(mute: Sequence[Launched]) -> str:
    launched, *others = mute
    which = f"--submission {launched.manifest.provenance.submission}" if others else launched.run_dir.uid
    tables = sorted(_written_tables(launched), key=_is_of_training)
    for file in filter(lambda table: _tells_of_quality(launched, table), tables):
        return _reading_file(which, _one_for_all(_MOMENT.sub("*", file), others, _written_tables))
    printed = last_printed(launched.run_dir)
    if found := suggested_rules(printed):
        names = [name for _, name in found]
        read = "one" if len(names) == 1 else " and ".join(names)
        rules = ", ".join(rule for rule, _ in found)
        is_asked_for = names[0].strip('"') == launched.manifest.run.objective.metric
        by = "it" if len(names) == 1 else names[0]
        judged = "" if is_asked_for else f", and objective.metric={shlex.quote(names[0])} judges by {by}"
        return f"{_reading(which, 'workload.metrics', f'[{rules}]', f'{read} from what it printed')}{judged}"
    if of_rows := rule_of_table(printed) or rule_of_numbers(printed):
        return _reading(which, "workload.metrics", f"[{of_rows}]", "one from what it printed")
    for file in chain(tables, _written_columns(launched)):
        written = _written_tables if file in tables else _written_columns
        return _reading_file(which, _one_for_all(_MOMENT.sub("*", file), others, written))
    if (of_text := _rule_of_a_text(launched)) is not None:
        file, rule = of_text
        return (
            f"hpcml run workload.metrics='[{rule}]' -- bash -c 'YOUR COMMAND && cat {file}' reads one from that file, "
            "which it wrote and did not print"
        )
    return _of_a_name(which, printed, launched) or _of_nothing_printed(launched)


def _of_a_name(which: str, printed: str, launched: Launched) -> str | None:
    if (found := rule_of_name(printed)) is None:
        return None
    rule, name = found
    judged = "" if name == launched.manifest.run.objective.metric else f", and objective.metric={name} judges by it"
    return f"{_reading(which, 'workload.metrics', f'[{rule}]', 'one from what it printed')}{judged}"


def _of_nothing_printed(launched: Launched) -> str:
    """Return what makes metrics of a program known that has neither printed nor written any that can be read."""
    words = launched.manifest.plan.argv
    names = {PurePath(word).name for word in words}
    if "papermill" in names and "--log-output" not in words:
        return "papermill prints what the cells print with --log-output, and a rule of workload.metrics reads it there"
    if names & {"nbconvert", "jupyter-nbconvert"} and "--execute" in words:
        return (
            "nbconvert keeps what the cells print in the notebook that it writes; papermill --log-output prints it, "
            "where a rule of workload.metrics reads it"
        )
    of_others = next((f"what it told {name} (in {folder}) is not read; " for folder, name in _trackers(launched)), "")
    return (
        f"{of_others}workload.metrics='[{{pattern: \"loss (?P<value>\\S+)\", name: loss}}]' reads one from what a "
        "program prints, and hpcml_client reports any"
    )


def _trackers(launched: Launched) -> Iterator[tuple[str, str]]:
    """Yield the folders of trackers that the program wrote to, and which hpcml does not read, with their names."""
    with suppress(OSError, HpcmlError):  # it is advice: what cannot be read gives none
        for file in written_files(launched.run_dir):
            yield from ((part, _TRACKERS[part]) for part in PurePath(file.path).parts if part in _TRACKERS)


def _tells_of_quality(launched: Launched, table: str) -> bool:
    """Tell whether a name in *table* says what is better: a log of times, or of columns r, l and t, tells nothing."""
    kind = MetricFiles.by_ending(table)
    if kind is None:
        return False
    root = Path(launched.manifest.plan.cwd)
    with suppress(OSError, Damaged):
        reader = reader_of(Source(kind=kind, place=table, stream="", label=""), root)
        names = {reading.name for reading in reader.read()[0]}
        return any(goal_by_name(name) is not None and not is_duration_or_rate(name) for name in names)
    return False


def _reading_file(which: str, name: str) -> str:
    named = name if re.fullmatch(r"[\w./*-]+", name, re.ASCII) else f'"{name}"'  # Hydra asks for quotes
    return _reading(which, "workload.metrics_from", f"[auto,{named}]", "the file that it wrote")


def _reading(which: str, key: str, value: str, what: str) -> str:
    return f"hpcml read {which} {key}='{value}' reads {what}; the next hpcml run takes the same {key}"


def suggested_rules(printed: str) -> list[tuple[str, str]]:
    """Return rules with their names: of what was measured, and of a loss beside it, which tells of NaN.

    Where trials of a study were printed, it is judged by the best of them, whatever each of its trainings prints.
    """
    if _TRIAL.search(printed):
        return [(_OF_TRIALS, "best_value")]
    first = rule_of_rows(printed) if (found := suggested_rule(printed)) is None else found
    if first is None:
        return []
    lines = _with_digits(printed)
    loss = None if is_loss(first[1].strip('"')) else _last_of(_LOSS, lines)
    second = None if loss is None else _rule(loss.string, loss, lines)
    return [first] if second is None or second[1] == first[1] else [first, second]


def suggested_rule(printed: str) -> tuple[str, str] | None:
    """Return a rule for the last line of *printed* that looks like a metric, and its name; None where none does.

    Of that line it is the last one, and one of the training only where there is no other. A line with a reward comes
    before one with a loss, and a rate is one where nothing else is. One of data that was held out comes before all
    others but a reward. The best of all steps ("Best val_acc: 0.7") is one only where there is no other of its kind.
    Where it would take values of other lines too ("Training: loss 2.1" and "Validation: loss 2.3"), it begins with a
    word that tells this one, or wants none before it.
    """
    lines = _with_digits(printed)
    others: list[re.Match[str]] = []  # the last of each kind, none of which is of data that was held out
    for kind in _KINDS:
        last = _last_of(kind, lines)
        if last is not None and (kind is _KINDS[0] or _is_held_out(last)):
            return _rule(last.string, last, lines)
        others += [] if last is None else [last]
    if others and _CHECK.fullmatch(others[0]["before"].lstrip()):
        rate = next((one for one in others if one.re is _RATES and _OPERATIONS.search(one["before"])), None)
        others = others if rate is None or _is_repeated(others[0], lines) else [rate, *others]
    if all(one.re is _KINDS[-1] for one in others) and (of_fields := _rule_of_fields(lines)) is not None:
        return of_fields
    return _rule(others[0].string, others[0], lines) if others else None


def rule_of_name(printed: str) -> tuple[str, str] | None:
    """Return a rule for the last name with a number that has a fraction, of whatever kind, and its name; None: none.

    A time is one only where there is no other.
    """
    lines = _with_digits(printed)
    found = [one for line in lines for one in _NAMED.finditer(line) if not _NO_RESULT.search(one["before"])]
    values = [one for one in found if not _TIMES.search(one["before"])]
    last = [*found[-1:], *values[-1:]]
    return _rule(last[-1].string, last[-1], lines) if last else None


def _with_digits(printed: str) -> list[str]:
    """Return the ends of the lines that may have a number: prose of 64 KiB would take the rules seconds."""
    return [line[-_LONGEST:] for line in printed_lines(printed) if _DIGIT.search(line, max(0, len(line) - _LONGEST))]


def _is_repeated(found: re.Match[str], lines: Sequence[str]) -> bool:
    return sum(found["before"].strip() in line for line in lines) > 1


def _rule_of_fields(lines: Sequence[str]) -> tuple[str, str] | None:
    """Return a rule for what a solver says of each field, by its name: "Solving for Ux, Initial residual = 1e-05"."""
    last = next((found for line in reversed(lines) if (found := _OF_FIELDS.search(line))), None)
    if last is None:
        return None
    words, rest = (re.sub(r" +", " +", last[part]) for part in ("words", "rest"))
    return f'{{pattern: "{words}(?P<name>[\\w.]+){rest}(?P<value>[^\\s,]+)"}}', last["field"]


def _last_of(kind: re.Pattern[str], lines: Sequence[str]) -> re.Match[str] | None:
    """Return what *kind* finds last: of held-out data if there is any, and not the best if there is another.

    Nor what each thread or GPU does, if there is another.
    """
    of_rank: dict[tuple[bool, bool, bool], re.Match[str]] = {}
    for line in reversed(lines):
        found = _most_telling([one for one in kind.finditer(line) if _is_meant(one)])
        if found is not None:
            is_part = kind is _RATES and _OF_EACH.search(found["before"]) is not None
            of_rank.setdefault((_is_held_out(found), not _is_best(found), not is_part), found)
        if (True, True, True) in of_rank:
            break
    return of_rank[max(of_rank)] if of_rank else None


def _most_telling(found: Sequence[re.Match[str]]) -> re.Match[str] | None:
    """Return what tells most of what a line has: of a test and a validation the latter, by which one chooses."""
    most = max(found, key=_is_of_interest, default=None)
    if most is None or not _TEST.search(most["before"]):
        return most
    return max((one for one in found if _VALIDATION.search(one["before"])), key=_is_of_interest, default=most)


def _is_held_out(found: re.Match[str]) -> bool:
    return _HELD_OUT.search(found.string, 0, found.end("before")) is not None


def _is_best(found: re.Match[str]) -> bool:
    return _BEST.search(found.string, 0, found.end("before")) is not None


def _is_meant(found: re.Match[str]) -> bool:
    """Tell whether it is no such thing as a ``loss_scale``, nor a time, as in ``Time train: 1.25 eval: 0.31``."""
    of_what = _LOSS_OF.search(found["before"])
    if found.re is _OF_DATA and _TIMES.search(found.string[: found.start()]):
        return False
    return of_what is None or is_loss(of_what[1])


def rule_of_table(printed: str) -> str | None:
    """Return a rule for the rows of the last table in *printed*: numbers below a line with the names of its columns.

    The first of these is that of a step, or one is the name of what is measured. None where there is no table.
    """
    lines = [line for line in printed_lines(printed) if len(line) <= _LONGEST and not _RULED.fullmatch(line)]
    for header, row in reversed(list(pairwise(lines))):
        cells = _CELLS.findall(row)
        if len(cells) < 2 or not all(_NUMBER.fullmatch(cell) or _MARK.fullmatch(cell) for cell in cells):
            continue
        n_plain = sum(1 for _ in takewhile(_NUMBER.fullmatch, cells))  # columns before one that rows may lack
        if n_plain < 2:
            continue
        for found in (_CELLS.findall(header), _WIDE_CELLS.findall(header)):
            heads = found[1:] if found[:1] == ["#"] and len(found) > len(cells) else found  # a comment
            names = [_column(head) for head in heads]
            step = "step" if "step" in names else names[0] if names and names[0] in _STEPS else None
            are_names = len(set(names)) == len(names) == len(cells) and all(map(_COLUMN.fullmatch, names))
            if are_names and (step or any(re.search(_MEASURED, name) for name in names)):
                groups = [r"(?P<step>\d+)\S*" if name == step else rf"(?P<{name}>\S+)" for name in names[:n_plain]]
                bar = next((bar for bar in _BARS if bar in row), "|")
                end = f"[ {bar}]*$" if n_plain == len(names) else rf"(?![^\s{bar}])"
                return f'{{pattern: "^[ {bar}]*{f"[ {bar}]+".join(groups)}{end}"}}'
    return None


def rule_of_numbers(printed: str) -> str | None:
    """Return a rule for the last lines that are a step and numbers without a name, as "epoch 3: 0.93" or "3 0.51 0.93".

    None where there are no three such lines, of steps that grow and with as many numbers, one of which has decimals.
    """
    rows: list[re.Match[str]] = []
    for line in reversed([line for line in printed_lines(printed) if len(line) <= _LONGEST]):
        row = _UNNAMED.fullmatch(line.strip())
        if row is None or (rows and _shape(row) != _shape(rows[-1])):
            if rows:
                break
            continue
        rows.append(row)
    steps = [int(row["step"]) for row in reversed(rows)]
    if len(rows) < _LEAST_ROWS or not all(former < later for former, later in pairwise(steps)):
        return None
    word, n = _shape(rows[0])
    if not any("." in row["values"] for row in rows):
        return None
    called = ["value"] if n == 1 else [f"value_{number}" for number in range(1, n + 1)]
    others = [rf"(?P<{name}>[^\s,;:|]+)" for name in called[:-1]]
    last = rf"(?P<{called[-1]}>[^\s,;:|]*\w)"  # to a word's end: at each dash of a bar the rest would be tried
    groups = r"[\s,;:|]+".join([*others, last])
    before = rf"{word}\W*" if word else ""
    named = ", name: value" if n == 1 else ""
    return f'{{pattern: "^\\W*{before}(?P<step>\\d+)[\\s,;:|]+{groups}\\W*$"{named}}}'


def _shape(row: re.Match[str]) -> tuple[str, int]:
    return row["word"] or "", len(_CELLS.findall(re.sub("[,;:]", " ", row["values"])))


def rule_of_rows(printed: str) -> tuple[str, str] | None:
    """Return a rule for rows that begin with a word, and its name, as "Copy: 18549.5 0.0087" of STREAM; None for none.

    The last column of the names above them that is a rate or a measure is read: by the words of the rows, or, where
    all rows have the same as HPL's, by its own name.
    """
    lines = [line for line in printed_lines(printed) if len(line) <= _LONGEST and not _RULED.fullmatch(line)]
    for at in reversed(range(len(lines) - 1)):
        cells = lines[at + 1].split()
        heads = [head for head in re.split(r"\s{2,}|\t", lines[at].strip()) if head]
        if not _is_labelled(cells) or _is_labelled(lines[at].split()) or not len({*heads}) == len(heads) == len(cells):
            continue
        column = max((n for n, head in enumerate(heads) if n and _OF_RATE.search(head)), default=None)
        if column is None:
            continue
        below = takewhile(_is_labelled, map(str.split, lines[at + 1 :]))
        rows = [row for row in below if len(row) == len(heads)]
        labels = {row[0] for row in rows}
        label = r"(?P<name>[A-Za-z][^\s:]*):?" if len(labels) > 1 else r"[A-Za-z]\S*"
        values = [r"(?P<value>\S+)" if n == column else r"[-+.\d]\S*" for n in range(1, len(heads))]
        named = rows[-1][0].rstrip(":") if len(labels) > 1 else _column(heads[column])
        name = "" if len(labels) > 1 else f", name: {named}"
        return f'{{pattern: "^ *{label} +{" +".join(values)} *$"{name}}}', named
    return None


def _is_labelled(cells: Sequence[str]) -> bool:
    return len(cells) > 1 and cells[0][0].isalpha() and all(map(_NUMBER.fullmatch, cells[1:]))


def _column(head: str) -> str:
    return "step" if head == "#" else re.sub(r"\W+", "_", head).strip("_").lower()


def _rule(line: str, found: re.Match[str], lines: Sequence[str]) -> tuple[str, str]:
    """Return the rule that reads what was *found* in *line*, and nothing else of *lines*, and its name."""
    bests = [] if _is_best(found) else [one for one in lines if _BEST.search(one)]
    lines = [one for one in lines if one not in bests or one == line]
    plain = found["before"].lstrip()
    literal = re.sub(r"[()\[\]]", r"\\\g<0>", re.sub(f"[\"'{_BARS}]", ".", plain))
    words = re.sub(r" +", " +", re.sub(r"(?<= )\d+\b", r"\\d+", literal))
    plain = re.sub(r"(?<= )\d+\b", "", plain)
    value = r"[^\s,}]+" if re.search("[\"'] *: *$", plain) else r"\S+"  # of JSON, in one word with what follows
    heads = [one[: other.start()] for one in lines for other in re.finditer(rf"{words}{_BEFORE_NUMBER}[-+]?\.?\d", one)]
    if re.match(r"\d+ / \d", line[found.end("before") :]):  # so many out of so many
        value = r"\d+ / \d+"
    elif not _is_number_in(re.match(value, line[found.end("before") :])):  # as 0.71±0.02, or 0.5|acc:0.9
        value = _NUMBER_ALONE
    head = line[: found.start("before")]
    if word := _telling_word(head, heads):
        words, plain = f"{word}.*{words}", f"{word} {plain}"
    else:
        if not re.search(r"\w$", head) and any(re.search(r"\w$", one) for one in heads):  # the end of another name
            words = rf"\b{words}"
        is_last_word = re.search(r"[A-Za-z] $", head) is not None  # here, too: "Final Test: 0.8"
        if not is_last_word and any(re.search(r"[A-Za-z] $", one) for one in heads):
            words = rf"(?<![A-Za-z] ){words}"
    spoken = re.sub(
        r"/(?=(?:s(?:ec|econd)?|gpu|device|node|rank|thread|process)\b)", "_per_", plain, flags=re.IGNORECASE
    )  # tok/s is a rate, which tok_s is not
    name = re.sub(r"_(?:is|was|rating_of)$", "", re.sub(r"\W+", "_", spoken).strip("_").lower())
    named = name if name.isascii() else f'"{name}"'
    pattern = _with_step(f"{words}(?P<value>{value})", head, lines)
    read = (_BEST.search(one, 0, other.end()) for one in bests for other in re.finditer(pattern, one))
    if word_of_best := next(filter(None, read), None):
        pattern = f"^(?!.*{word_of_best[0]}).*?{pattern}"
    return f'{{pattern: "{pattern}", name: {named}}}', named


def _is_number_in(found: re.Match[str] | None) -> bool:
    """Whether a rule would read a number in what was *found*."""
    try:
        return found is not None and math.isfinite(number_or_share(plain(found[0])))
    except ValueError:
        return False


def _with_step(pattern: str, head: str, lines: Sequence[str]) -> str:
    """Return *pattern* with the group ``step``, where the *head* of a line says one, and it grows from line to line.

    It is left as it is where it would read other values then, or several of one step, as those within an epoch. A value
    that is printed again with its step does no harm: LightGBM prints that of its best iteration last.
    """
    plain = [match["value"] for line in lines for match in re.finditer(pattern, line)]
    for counted in (*_COUNTED, *_AT_BEGIN):
        if (word := re.search(counted, head)) is None:
            continue
        counting = _AT_BEGIN.get(counted) or rf"{word[1]}\W+(?P<step>\d+(?:,\d\d\d)*)"
        stepped = rf"{counting}.*?{pattern}"
        found = [match for line in lines for match in re.finditer(stepped, line)]
        values = dict.fromkeys((int(match["step"].replace(",", "")), match["value"]) for match in found)
        grows = all(one < other for (one, _), (other, _) in pairwise(values))
        if grows and [match["value"] for match in found] == plain:
            return stepped
    return pattern


def _is_of_interest(found: re.Match[str]) -> tuple[bool, bool, bool, int]:
    before = found["before"]
    return not _is_best(found), "train" not in before.lower(), _LOSS_OF.search(before) is None, found.start()


def _telling_word(head: str, heads: Sequence[str]) -> str | None:
    """Return the word of *head* that most of *heads* lack; None where each has all of its words."""
    without = {word: sum(word not in one for one in heads) for word in re.findall(r"[A-Za-z]{2,}", head)}
    word = max(without, key=without.__getitem__, default=None)
    return word if word is not None and without[word] else None


def _is_of_training(file: str) -> bool:
    return re.search("train|learn", file, re.IGNORECASE) is not None


def _has_names(table: Path) -> bool:
    """Whether *table* begins with the names of what it holds, or an object; data without a heading is no metric."""
    with table.open("rb") as file:
        first = file.readline(_MOST_OF_HEADING).decode("utf-8", "replace").strip()
    if table.suffix in (".json", ".jsonl"):
        return first.startswith("{")
    return first != "" and not any(map(_is_number, re.split(r"[,;\t]", first)))


def _is_number(word: str) -> bool:
    try:
        float(word.strip(" \"'"))
    except ValueError:
        return False
    return True


def _one_for_all(file: str, others: Sequence[Launched], written: Callable[[Launched], Iterator[str]]) -> str:
    """Return *file*, with * for what differs in the names that *others* gave to theirs ("metrics_seed*.csv")."""
    for other in others[:_MOST_LOOKED_AT]:
        theirs = [_MOMENT.sub("*", name) for name in written(other)]
        if any(fnmatchcase(name, file) for name in theirs):
            continue
        alike = [_alike(file, name) for name in theirs if PurePath(name).suffix == PurePath(file).suffix]
        file = max(alike, key=len, default=file)
    return file


def _alike(one: str, other: str) -> str:
    """Return what both begin and end with, and * between.

    >>> _alike("out/seed0.csv", "out/seed11.csv")
    'out/seed*.csv'
    """
    begin = _shared(one, other)
    end = _shared(one[len(begin) :][::-1], other[len(begin) :][::-1])[::-1]
    return f"{begin}*{end}".replace("**", "*")


def _shared(one: str, other: str) -> str:
    """Return the signs that both begin with."""
    return "".join(sign for sign, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _written_tables(launched: Launched) -> Iterator[str]:
    """Yield the tables that the program wrote, as `workload.metrics_from` names them."""
    for place, path in _written(launched, lambda name: name.endswith(_SUFFIXES) or _RESULTS.search(name) is not None):
        with suppress(OSError):
            if _has_names(path):
                yield place


def _written_columns(launched: Launched) -> Iterator[str]:
    """Yield the texts that the program wrote with numbers below names, as `workload.metrics_from` names them."""
    for place, path in _written(launched, lambda name: name.endswith(_COLUMNS)):
        with suppress(OSError, Damaged):
            if CsvTable(path.parent, path).read()[0]:
                yield place


def _rule_of_a_text(launched: Launched) -> tuple[str, str] | None:
    """Return a text that the program wrote, and a rule for it, where one is known; None where none is."""
    for place, path in _written(launched, lambda name: name.endswith(_TEXTS)):
        with suppress(OSError), path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _MOST_OF_TEXT))
            text = file.read(_MOST_OF_TEXT).decode("utf-8", "replace")
            found = suggested_rule(text)
            if rule := rule_of_table(text) if found is None else found[0]:
                return _MOMENT.sub("*", place), rule
    return None


def _written(launched: Launched, is_wanted: Callable[[str], bool]) -> Iterator[tuple[str, Path]]:
    """Yield files that the program wrote and that nobody has named: from where it starts, and whole."""
    with suppress(OSError, HpcmlError):  # it is advice: what cannot be read gives none
        for file in written_files(launched.run_dir):
            place = os.path.relpath(launched.run_dir.work / file.path, launched.manifest.plan.cwd)
            if is_wanted_by(launched.manifest.run.workload.metrics_from, place):
                continue  # it was read, and what was wrong with it is said
            if is_wanted(place) and _NAMEABLE.fullmatch(place) and not place.startswith(".."):
                yield place, launched.run_dir.work / file.path
