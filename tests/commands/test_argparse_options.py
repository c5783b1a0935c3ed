"""What a script's own argparse takes, read without executing the script: known where it is certain, else nothing."""

import contextlib
import io
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcml.commands.submit.argparse_options import misfit, options_of

SCRIPT = """
import argparse

def get_args():
    p = argparse.ArgumentParser(description="trains")
    p.add_argument("data", nargs="?")
    p.add_argument("--lr", "-l", type=float, default=0.1)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("-lrd", type=str)
    g = p.add_argument_group("model")
    g.add_argument("--arch", choices=["vgg", "resnet"])
    g.add_argument("--depth", type=int, choices=(18, 34))
    p.add_argument_group("more").add_argument("--sizes", type=int, nargs="+")
    p.add_argument("-v", action="store_true")
    p.add_argument("--amp", action=argparse.BooleanOptionalAction)
    p.set_defaults(depth=18)
    return p

if __name__ == "__main__":
    args = get_args().parse_args()
"""
BEGIN = "import argparse\np = argparse.ArgumentParser()\n"
END = "args = p.parse_args()\n"


def written(folder: Path, text: str) -> Path:
    script = folder / "train.py"
    script.write_text(text)
    return script


@contextlib.contextmanager
def as_program(words: list[str]) -> Iterator[io.StringIO]:
    before, sys.argv = sys.argv, ["train.py", *words]
    try:
        with contextlib.redirect_stderr(io.StringIO()) as said:
            yield said
    finally:
        sys.argv = before


@pytest.mark.parametrize(
    "words",
    [
        *(
            "",
            "data --lr 0.1",
            "--lr=1e-3",
            "-l 2",
            "-l2",
            "-lrd x",
            "-v",
            "-vl 0.5",
            "-l2 data",
            "--no-amp",
            "--ep 3",
            "--arch vgg",
        ),
        *("--depth 34", "--sizes 1 2 3 --lr 1", "--sizes=1", "--lr -3", "-- --foo", "--epochs 1_000", "--epochs=' 7'"),
        *("--foo", "--lrs 1", "--arhc vgg", "-x", "-x3", "--foo=3", "data --foo", "--arch alexnet", "--arch=alexnet"),
        *(
            "--epochs 1e3",
            "--epochs=two",
            "--lr big",
            "--depth 50",
            "--depth deep",
            "--sizes 1 --foo",
            "--lr 1 --seed 0",
        ),
    ],
)
def test_what_is_wrong_is_what_argparse_says(tmp_path: Path, words: str) -> None:
    """The script is executed here, as the reference."""
    script, given = written(tmp_path, SCRIPT), shlex.split(words)
    with as_program(given) as said:
        try:
            exec(compile(SCRIPT, "train.py", "exec"), {"__name__": "__main__"})  # noqa: S102
            is_right = True
        except SystemExit:
            is_right = False

    options = options_of(script)

    assert options is not None
    assert (misfit(options, given) is None) == is_right, said.getvalue()


def test_what_is_wrong_is_said_with_what_was_meant(tmp_path: Path) -> None:
    options = options_of(written(tmp_path, SCRIPT))
    assert options is not None

    assert misfit(options, ["--epcohs", "3"]) == "--epcohs is no option of its parser (line 5): did you mean --epochs?"
    assert (misfit(options, ["--no-apm"]) or "").endswith("did you mean --no-amp?")
    assert misfit(options, ["--arch=resnt"]) == (
        "--arch resnt: it is one of vgg, resnet; did you mean resnet? (line 11)"
    )
    assert misfit(options, ["--epochs", "1e3"]) == "--epochs 1e3: it is to be a whole number (line 8)"
    assert misfit(options, ["--lr=0.1,0.2"]) == (
        "--lr 0.1,0.2: it is to be a number; -m in front of the -- makes a run of each, without --as-is (line 7)"
    )
    assert (misfit(options, ["--zzz"]) or "").endswith(
        "it has --amp, --arch, --depth, --epochs, --lr, --sizes, -l, -lrd, -v"
    )


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + "args, rest = p.parse_known_args()\n",
        BEGIN + "p.parse_args(['--lr', '1'])\n",
        BEGIN + "add_more(p)\n" + END,
        BEGIN + "Trainer.add_argparse_args(parent_parser=p)\n" + END,
        BEGIN + "p = deepspeed.add_config_arguments(p)\n" + END,
        BEGIN + "p.add_argument('rest', nargs=argparse.REMAINDER)\n" + END,
        BEGIN + "p.add_argument('rest', nargs='...')\n" + END,
        BEGIN + "s = p.add_subparsers()\n" + END,
        BEGIN + "for n in NAMES:\n    p.add_argument(n)\n" + END,
        BEGIN + "p.add_argument(f'--{n}')\n" + END,
        BEGIN + "p.add_argument('--x', **more)\n" + END,
        BEGIN + "add = p.add_argument\nadd('--x')\n" + END,
        BEGIN + "p._actions.clear()\n" + END,
        BEGIN + "if notebook:\n    args = None\nelse:\n    args = p.parse_args()\n",
        BEGIN + "try:\n    args = p.parse_args()\nexcept SystemExit:\n    pass\n",
        BEGIN + "q = argparse.ArgumentParser()\n" + END,
        BEGIN + "p = other.parser()\n" + END,
        BEGIN + "import sys\nsys.argv.remove('--x')\n" + END,
        BEGIN + "import sys\nsys.argv = sys.argv[:1]\n" + END,
        BEGIN + "import sys\ndel sys.argv[1]\n" + END,
        BEGIN + "def get(p):\n    p.add_argument('--y')\n" + END,
        BEGIN + "def never_called():\n    return p.parse_args()\n",
        BEGIN + "print(p.prefix_chars)\n" + END,
        BEGIN,
        "import argparse\np = argparse.ArgumentParser(parents=[common])\n" + END,
        "import argparse\np = argparse.ArgumentParser(prefix_chars='+')\n" + END,
        "import argparse\np = argparse.ArgumentParser(fromfile_prefix_chars='@')\n" + END,
        "import argparse\nclass P(argparse.ArgumentParser):\n    pass\np = P()\n" + END,
        "from mine import ArgumentParser\np = ArgumentParser()\n" + END,
        "from mine import argparse as argparse\np = mine.ArgumentParser()\n" + END,
        "import argparse\ndef f():\n    return argparse.ArgumentParser()\ng = f\np = g()\n" + END,
        "from mine import argparse\np = argparse.ArgumentParser()\n" + END,
        "import mine as argparse\np = argparse.ArgumentParser()\n" + END,
        "try:\n    from mine import ArgumentParser\nexcept ImportError:\n    from argparse import ArgumentParser\n"
        "p = ArgumentParser()\n" + END,
        BEGIN + "def parse_args():\n    return p.parse_args()\n",
        BEGIN + "def get():\n    return p.parse_args()\ndef get():\n    return None\nget()\n",
        BEGIN + "async def main():\n    p.parse_args()\nmain()\n",
        BEGIN + "def main():\n    p.parse_args()\nif 'WORKER' in os.environ:\n    work()\nelse:\n    main()\n",
        BEGIN + "def main():\n    if 'WORKER' in os.environ:\n        return\n    p.parse_args()\nmain()\n",
        BEGIN + "if __name__ == '__main__' and not is_worker():\n    p.parse_args()\n",
        BEGIN + "if __name__ == '__main__':\n    pass\nelse:\n    p.parse_args()\n",
        BEGIN + "all_args = [p.parse_args() for _ in range(N)]\n",
        BEGIN + "if '--worker' in sys.argv:\n    sys.exit(work())\n" + END,
        BEGIN + "words = sys.argv\nwords.remove('--x')\n" + END,
        BEGIN + "cleaned(sys.argv)\n" + END,
        BEGIN + "setattr(sys, 'argv', [])\n" + END,
        BEGIN + "exec(open('more.py').read())\n" + END,
        BEGIN + "p.add_argument('--x', action=OnOff)\n" + END,
        BEGIN + "class OnOff(argparse.Action):\n    def __init__(self, names, **more):\n        pass\n"
        "p.add_argument('--x', action=OnOff)\n" + END,
        "import argparse\ndef get():\n    p = argparse.ArgumentParser()\n    return p\nbase.get().parse_args()\n",
        "from mine import p\nimport argparse\ndef f():\n    p = argparse.ArgumentParser()\n" + END,
        "import argparse\np = argparse.ArgumentParser(\n",
        "",
    ],
)
def test_nothing_is_known_where_something_else_has_a_say(tmp_path: Path, text: str) -> None:
    assert options_of(written(tmp_path, text)) is None


def test_nothing_is_known_of_a_script_whose_own_module_changes_the_words(tmp_path: Path) -> None:
    (tmp_path / "words.py").write_text("import sys\nsys.argv = sys.argv[:1]\n")

    assert options_of(written(tmp_path, "import words\n" + BEGIN + END)) is None


@pytest.mark.parametrize(
    "text",
    [
        BEGIN + "import sys\nprint(sys.argv[0], len(sys.argv))\n" + END,
        "from argparse import ArgumentParser\np = ArgumentParser()\ndef main():\n    a = p.parse_args()\nmain()\n",
        BEGIN + "import sys\nif __name__ == '__main__':\n    args = p.parse_args(sys.argv[1:])\n",
        "import argparse\nargs: argparse.Namespace = argparse.ArgumentParser().parse_args()\n",
        BEGIN + END + "model.eval()\n",
        "import argparse as a\np = a.ArgumentParser()\ndef main():\n    return vars(p.parse_args())\nexit(main())\n",
    ],
)
def test_a_parser_without_options_takes_help_alone(tmp_path: Path, text: str) -> None:
    options = options_of(written(tmp_path, text))

    assert options is not None
    assert misfit(options, ["--help"]) is None
    assert (misfit(options, ["--lr", "1"]) or "").endswith("it has none")


def test_an_abbreviation_is_none_where_the_parser_takes_none(tmp_path: Path) -> None:
    made = "import argparse\np = argparse.ArgumentParser(allow_abbrev=False)\np.add_argument('--epochs')\n"
    options = options_of(written(tmp_path, made + END))

    assert options is not None
    assert misfit(options, ["--epoch", "3"]) is not None


def test_an_option_that_is_made_in_two_places_takes_what_either_takes(tmp_path: Path) -> None:
    twice = "if A:\n    p.add_argument('--n', type=int)\nelse:\n    p.add_argument('--n')\n"
    options = options_of(written(tmp_path, BEGIN + twice + END))

    assert options is not None
    assert misfit(options, ["--n", "many"]) is None


def test_the_script_is_not_executed(tmp_path: Path) -> None:
    options_of(written(tmp_path, f"{BEGIN}open({str(tmp_path / 'made')!r}, 'w')\n{END}"))

    assert not (tmp_path / "made").exists()


def test_a_type_that_is_called_int_and_is_the_scripts_own_takes_what_it_takes(tmp_path: Path) -> None:
    own = "def int(text):\n    return round(float(text))\np.add_argument('--n', type=int)\n"
    options = options_of(written(tmp_path, BEGIN + own + END))

    assert options is not None
    assert misfit(options, ["--n", "1e3"]) is None


def test_the_options_of_an_action_of_the_scripts_own_are_known_by_the_names_it_is_given(tmp_path: Path) -> None:
    own = (
        "class Pair(argparse.Action):\n    def __call__(self, *_):\n        pass\np.add_argument('--x', action=Pair)\n"
    )
    options = options_of(written(tmp_path, BEGIN + own + END))

    assert options is not None
    assert misfit(options, ["--y", "1"]) is not None
