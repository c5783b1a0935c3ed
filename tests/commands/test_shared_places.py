"""Places that all runs of a sweep would write to, found in what their program says before it is started."""

from __future__ import annotations

import json
from pathlib import Path
from time import process_time

import pytest

from hpcml.commands.submit.shared_places import shared_places

_PARSED = "import argparse\np = argparse.ArgumentParser()\n"

SHARED = {
    "a home": "from pathlib import Path\nck = Path.home() / '.cache' / 'last.json'\nck.write_text('')\n",
    "a default": f"{_PARSED}p.add_argument('--ckpt', default='/tmp/m.pkl')\na = p.parse_args()\nopen(a.ckpt, 'wb')\n",
    "a join": "import os\nD = os.path.expanduser('~/runs')\ndef f(m):\n    m.save(os.path.join(D, 'm.pt'))\n",
    "a field": "class C:\n    out: str = '/scratch/me'\ndef f(c, df):\n    df.to_csv(c.out + '/a.csv')\n",
    "a setting": "import yaml\nc = yaml.safe_load(open('config.yaml'))\nnp.save(c['output_dir'] + '/w.npy', w)\n",
    "a module's": "import places\ntorch.save(m, places.CKPT)\n",
    "a variable's": "import os\nopen(os.environ['RESULTS'] + '/log.txt', 'a')\n",
    "a folder's": "import os\nos.chdir('/scratch/me/work')\n",
    "a database": "import optuna\noptuna.create_study(storage='sqlite:////scratch/me/s.db')\n",
    "a database of studies": "from optuna.storages import RDBStorage\nRDBStorage('sqlite:////scratch/me/s.db')\n",
    "a parameter's": "def save(m, path='/tmp/m.pt'):\n    pickle.dump(m, open(path, 'wb'))\n",
    "a keyword": "trainer = Trainer(default_root_dir='/scratch/me/lit')\n",
    "a folder of checkpoints": "Trainer(checkpoint_dir='/scratch/me/ck')\n",
    "a temporary folder": "import tempfile, os\nopen(os.path.join(tempfile.gettempdir(), 'x.lock'), 'w')\n",
    "a command's": "import os\nD = '/scratch/me'\nos.system(f'cd src && cp a.pt {D}/a.pt')\n",
    "a command's output": "import subprocess\nsubprocess.run('./sim > /scratch/me/log.txt', shell=True)\n",
    "a command's words": "import subprocess\nsubprocess.check_call(['rsync', '-a', src, '/scratch/me/out'])\n",
    "a loop's": "def train():\n    for epoch in range(10):\n        torch.save(m, f'/scratch/me/ep_{epoch}.pt')\n",
    "a loop's words": "for i, name in enumerate(names):\n    open('/scratch/me/fold_%02d.txt' % i, 'w')\n",
    "a loop's list": "OUT = '/scratch/me'\nfor f in ('train', 'val'):\n    df.to_csv(os.path.join(OUT, f + '.csv'))\n",
    "a format's": "for i in range(3):\n    torch.save(m, '/scratch/me/{}_{:03d}.pt'.format('a', i))\n",
    "a name's": "NAME = 'resnet'\ntorch.save(m, f'/scratch/me/{NAME}.pt')\n",
    "a Trainer's": "args = TrainingArguments('/scratch/me/o')\n",
    "an attribute's": "args.out = '/scratch/me'\ndef train(args):\n    torch.save(m, args.out + '/m.pt')\n",
    "an attribute's that was nothing": (
        "class C:\n    def __init__(self):\n        self.out = None\n"
        "    def begin(self):\n        self.out = '/scratch/me'\n    def end(self):\n        torch.save(m, self.out)\n"
    ),
    "what is removed": "import shutil\nshutil.rmtree('/scratch/me/out')\n",
    "a database that is changed": "import sqlite3\nc = sqlite3.connect('/data/a.db')\nc.execute('INSERT INTO t')\n",
}
OWN = {
    "relative": "open('out.txt', 'w')\n",
    "read": "import torch\ntorch.load('/data/weights/m.pt')\nopen('/data/x.csv')\nopen('~/x', 'rb')\n",
    "each its own": "torch.save(m, f'/scratch/me/{args.seed}-{args.lr}.pt')\n",
    "beside its file": "import os\nopen(os.path.join(os.path.dirname(__file__), 'a.pt'), 'w')\n",
    "nobody's": "open('/dev/null', 'w')\nopen('/dev/stderr', 'w')\n",
    "made anew": "import os\nout = '/scratch/me'\nout = os.path.join(out, str(seed))\nopen(out + '/a', 'w')\n",
    "data": "datasets.MNIST('~/data', download=True)\nos.makedirs('/scratch/me/data', exist_ok=True)\n",
    "a parameter": "path = '/data/x.csv'\ndef save(m, path):\n    torch.save(m, path)\n",
    "a parameter called as another's attribute": (
        "class Store:\n    def __init__(self):\n        self.path = '/tmp/plasma'\n"
        "class Data:\n    def __init__(self, path, index):\n        np.save(f'{path}.npy', index)\n"
    ),
    "an attribute called as another's": (
        "class Store:\n    def __init__(self):\n        self.path = '/tmp/plasma'\n"
        "class Data:\n    def __init__(self, path):\n        self.path = path\n"
        "    def keep(self, index):\n        np.save(self.path, index)\n"
    ),
    "the run's": "import os\nopen(os.environ['HPCML_RUN_DIR'] + '/x', 'w')\n",
    "told": f"{_PARSED}p.add_argument('--out', default='/tmp/m')\na = p.parse_args()\nopen(a.out, 'w')\n",
    "looked in": "import sys\nsys.path.append('/home/me/lib/tools')\nfiles.append('/scratch/me/a.npy')\n",
    "words replaced": "labels = name.replace('/images/train', '/labels/train')\n",
    "mapped to be read": "np.memmap('/data/train.bin', dtype='uint16', mode='r')\n",
    "a checkpoint that is read": "tf.train.NewCheckpointReader('/data/m')\n",
    "a checkpoint to go on from": "trainer.fit(m, ckpt_path='/data/m.ckpt')\nNet(checkpoint_path='/data/w.pt')\n",
    "made a string": "import json\njson.dumps('/scratch/me/a')\n",
    "a database that is read": "import sqlite3\nc = sqlite3.connect('/data/a.db')\nc.execute('SELECT 1')\n",
    "a database that is read where comments speak of others": (
        "import sqlite3\n# create the model, update a copy of it, delete it\nc = sqlite3.connect('/data/a.db')\n"
    ),
    "data to train with": "m = Data(train_dir='/data/train')\nc = {'train_path': '/data/b'}\n",
    "what a command evaluates": "os.system('eval --ckpt /data/m.pt --layout=/data/l --checkpoint /data/n')\n",
    "a database to be read": "c = duckdb.connect('/data/a.db', read_only=True)\nc.execute('CREATE TEMP TABLE t')\n",
    "a socket": "import socket\ns = socket.socket(socket.AF_UNIX)\ns.connect('/tmp/agent.sock')\n# create it\n",
    "what a command reads": "os.system('cp a . && cd /scratch/me/repo && make')\nrun(['tar', 'xf', '/data/a'])\n",
    "a loop over what is told": "for seed in sys.argv[1:]:\n    torch.save(m, f'/scratch/me/{seed}.pt')\n",
    "a name that goes on": "out = '/scratch/me/x'\nout += f'_{seed}'\nopen(out, 'w')\n",
    "two names": "a, b = '/scratch/me', seed\na, b = seed, a\nopen(a, 'w')\n",
    "doubled": "a = '/scratch/me/x'\n" + "a += a\n" * 99 + "open(a, 'w')\n",
    "no Python of ours": "print 'x'\nopen('/tmp/m.pkl', 'w')\n",
}


def found(folder: Path, name: str, text: str, *words: str, files: dict[str, str] | None = None) -> list[str]:
    for each, content in {name: text, **(files or {})}.items():
        (folder / each).write_text(content)
    starts = {"py": "python", "sh": "bash", "R": "Rscript"}
    environ = {"RESULTS": "/scratch/me/results", "HOME": "/home/me", "PWD": "/scratch/me"}
    return [
        each.place
        for each in shared_places([starts.get(name.rpartition(".")[2], "run"), name, *words], folder, folder, environ)
    ]


@pytest.mark.parametrize("text", SHARED.values(), ids=SHARED.keys())
def test_a_place_that_all_runs_of_a_program_write_to_is_found(tmp_path: Path, text: str) -> None:
    files = {"config.yaml": "output_dir: /scratch/me/yaml  # here\n", "places.py": "CKPT = '/scratch/me/c.pt'\n"}

    assert len(found(tmp_path, "train.py", text, files=files)) == 1


@pytest.mark.parametrize("text", OWN.values(), ids=OWN.keys())
def test_what_is_each_runs_own_or_only_read_is_not_named(tmp_path: Path, text: str) -> None:
    assert found(tmp_path, "train.py", text, "--out", "here") == []


@pytest.mark.parametrize(
    ("name", "text", "places"),
    [
        ("job.sh", "OUT=$HOME/res\nmkdir -p $OUT\n./sim >> $OUT/log.txt\n", ["~/res/log.txt"]),
        ("job.sh", "OUT=${OUT:-/scratch/me/o}\n./sim | tee -a $OUT/log\n", ["/scratch/me/o/log"]),
        ("job.sh", "cp model.pt $RESULTS/model.pt\n", ["/scratch/me/results/model.pt"]),
        ("job.sh", "cp a b && cat /data/x\n", []),
        ("job.sh", "cd /scratch/me/work\n./sim\n", ["/scratch/me/work"]),
        ("job.sh", "./sim --output-dir=/scratch/me/o\n", ["/scratch/me/o"]),
        ("job.sh", "./sim --init_checkpoint=/scratch/o.ckpt --load_ckpt_path /scratch/p --log-config /data/l\n", []),
        ("job.sh", "./sim > /scratch/me/$1.log 2> /dev/null\ncd $PWD\nmv data/a/* data/b/\n", []),
        ("job.sh", "# cd /scratch/me\ncd $(mktemp -d)\n./sim > out.log\n", []),
        ("fit.R", 'out <- "~/res/fit.rds"\nsaveRDS(m, out)\n', ["~/res/fit.rds"]),
        ("fit.R", 'd <- read.csv("/data/a.csv")\nsaveRDS(m, "fit.rds")\n', []),
        ("sim.c", '#define LOG "/tmp/sim.log"\nFILE *f = fopen(LOG, "a");\n', ["/tmp/sim.log"]),  # noqa: S108
        ("sim.c", 'FILE *f = fopen("/data/in.dat", "r"); // fopen("/tmp/x", "w")\n', []),
        ("sim.f90", "open(unit=10, file='/tmp/sim.dat', status='unknown')\n", ["/tmp/sim.dat"]),  # noqa: S108
    ],
)
def test_shells_and_languages_in_which_a_line_tells_are_read(
    tmp_path: Path, name: str, text: str, places: list[str]
) -> None:
    assert found(tmp_path, name, text) == places


@pytest.mark.parametrize(
    ("words", "files"),
    [
        ("python -m pkg.train", {"pkg/train.py": "open('/scratch/me/a.pt', 'wb')\n"}),
        ("python -m pkg", {"pkg/__main__.py": "from pkg import io\n", "pkg/io.py": "open('/scratch/me/a.pt', 'wb')\n"}),
        ("python train.py", {"train.py": "from .io import save\n", "io.py": "open('/scratch/me/a.pt', 'wb')\n"}),
        (
            "python train.py",
            {
                "train.py": "@hydra.main(config_path='conf', config_name='main')\ndef f(c):\n    save(m, c.x.ckpt)\n",
                "conf/main.yaml": "x:\n  ckpt: /scratch/me/a.pt\n",
            },
        ),
        ("make", {"Makefile": "sim: sim.c\n\tcc sim.c\n", "sim.c": 'f = fopen("/scratch/me/a.pt", "w");\n'}),
        ("make all", {"Makefile": "all:\n\t./sim > /scratch/me/a.pt\n"}),
        (
            "papermill a.ipynb b.ipynb",
            {"a.ipynb": '{"cells": [{"cell_type": "code", "source": ["%cd x\\n", "save(\'/scratch/me/a.pt\')"]}]}'},
        ),
    ],
)
def test_a_program_is_followed_into_modules_settings_makefiles_and_notebooks(
    tmp_path: Path, words: str, files: dict[str, str]
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert [each.place for each in shared_places(words.split(), tmp_path, tmp_path, {})] == ["/scratch/me/a.pt"]


def test_files_that_such_code_names_are_read(tmp_path: Path) -> None:
    (tmp_path / "sim.f90").write_text("open(unit=10, file='/scratch/me/s.dat', status='replace')\n")

    (one,) = shared_places(["bash", "-c", "gfortran sim.f90 && ./a.out"], tmp_path, tmp_path, {})

    assert (one.file, one.line, one.place) == ("sim.f90", 1, "/scratch/me/s.dat")


def test_code_behind_a_flag_of_the_shell_is_read(tmp_path: Path) -> None:
    (one,) = shared_places(["bash", "-c", "./sim > ~/res/log.txt"], tmp_path, tmp_path, {})

    assert (one.file, one.line, one.place) == ("the command", 1, "~/res/log.txt")


@pytest.mark.parametrize(
    ("name", "part", "times"),
    [
        ("minified.sh", "rsync ", 50_000),
        ("minified.R", "open(", 50_000),
        ("wide.c", f"char x[3]{' ' * 1000}", 100),
        ("columns.c", f"char x[3]{' ' * 900}\n", 100),
        ("nested.sh", "a=${b:-", 50_000),
        ("growing.sh", "a=${a:-/tmp}\na=$a$a\necho x > $a/b\n", 40),
    ],
    ids=lambda value: value if isinstance(value, str) and value.isprintable() and len(value) < 15 else "",
)
def test_sources_that_nobody_wrote_by_hand_take_no_time(name: str, part: str, times: int, tmp_path: Path) -> None:
    (tmp_path / name).write_text("#!/bin/bash\n" + part * times)
    before = process_time()

    shared_places(["bash", name], tmp_path, tmp_path, {})

    assert process_time() - before < 60  # hours, where the time grows with the square of a line's length


def test_thousands_of_places_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "many.sh").write_text("#!/bin/bash\n" + "".join(f"echo x > /scratch/d{n}/f\n" for n in range(20_000)))

    found = shared_places(["bash", "many.sh"], tmp_path, tmp_path, {})

    assert [each.place for each in found] == [f"/scratch/d{n}/f" for n in range(20_000)]


def test_odd_sources_do_not_keep_others_from_being_looked_at(tmp_path: Path) -> None:
    for name, text in {
        "terms.py": f"x = {' + '.join(['DIR'] * 1500)}\nopen(x, 'w')\n",
        "chain.py": f"x = DIR{'.strip()' * 900}\nopen(x, 'w')\n",
        "escape.py": "import re\nx = re.compile('\\d')\nopen('/scratch/b', 'w')\n",
        "other.py": "print 'of Python 2'\n",
    }.items():
        (tmp_path / name).write_text(f"import places\nDIR = '/scratch/a'\n{text}")
    (tmp_path / "main.py").write_text("import terms, chain, escape, other\nopen('/scratch/c', 'w')\n")

    found = shared_places(["python", "main.py"], tmp_path, tmp_path, {})

    assert [each.place for each in found] == ["/scratch/c", "/scratch/b"]


def test_the_line_of_a_notebook_is_that_of_its_code(tmp_path: Path) -> None:
    cells = [
        {"cell_type": kind, "source": source}
        for kind, source in (("markdown", "# x\n"), ("code", "a = 1\nopen('/x/y', 'w')"))
    ]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells}))
    (tmp_path / "a.py").write_text("open('/x/y', 'w')\n")

    found = [
        shared_places(words.split(), tmp_path, tmp_path, {}) for words in ("papermill a.ipynb b.ipynb", "python a.py")
    ]

    assert [each.where for places in found for each in places] == ["a.ipynb, line 2 of its code", "a.py, line 1"]


@pytest.mark.parametrize(
    ("words", "environ", "found"),
    [
        ("python main.py", {"MLFLOW_TRACKING_URI": "sqlite:////scratch/me/mlflow.db"}, ["/scratch/me/mlflow.db"]),
        ("python main.py", {"MLFLOW_TRACKING_URI": "file:///scratch/me/mlruns"}, ["/scratch/me/mlruns"]),
        ("python main.py", {"MLFLOW_TRACKING_URI": "https://mlflow.example.org"}, []),
        ("python main.py", {"MLFLOW_TRACKING_URI": "sqlite:///mlflow.db"}, []),
        ("python other.py", {"MLFLOW_TRACKING_URI": "sqlite:////scratch/me/mlflow.db"}, []),
        (
            "nnUNetv2_train 4 2d 0",
            {"nnUNet_results": "/scratch/me/results", "nnUNet_raw": "/data"},
            ["/scratch/me/results"],
        ),
    ],
)
def test_a_variable_tells_a_library_where_all_runs_write(
    words: str, environ: dict[str, str], found: list[str], tmp_path: Path
) -> None:
    (tmp_path / "main.py").write_text("import mlflow\nmlflow.log_metric('loss', 0.5)\n")
    (tmp_path / "other.py").write_text("print(1)\n")

    places = shared_places(words.split(), tmp_path, tmp_path, environ)

    assert [each.place for each in places] == found
    assert all(
        each.where in ("the program, by MLFLOW_TRACKING_URI", "the program, by nnUNet_results") for each in places
    )
