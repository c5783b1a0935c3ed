"""A recipe says what it can do, and what it cannot is refused in one line before anything is submitted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.cluster import Cluster, Resources, SchedulerName
from hpcml.model.container import Container
from hpcml.model.precision import CPU, Device, PrecisionName
from hpcml.model.recipe import (
    Recipe,
    check,
    check_modules,
    check_requirements,
    find_program,
    outcome,
    own_recipes,
    read_recipe,
    recipe_names,
)
from hpcml.model.run import Data, Layout, LayoutName, Model, Objective, Precision, Run, Workload
from hpcml.model.strategy import Strategy, StrategyName
from hpcml.model.training import Training
from hpcml.paths import resource_dir

A_RUN = Run(
    model=Model(name="net", recipe="nets", framework="torch"),
    data=Data(name="digits"),
    precision=Precision(name=PrecisionName.tf32),
    strategy=Strategy(name=StrategyName.single),
    layout=Layout(name=LayoutName.nchw),
    container=Container(name="none"),
    cluster=Cluster(name="local", scheduler=SchedulerName.local),
    resources=Resources(),
    training=Training(),
    objective=Objective(),
    workload=Workload(),
)
TEXT = """
modules = ["scipy"]
summary = "networks"
frameworks = ["torch", "tensorflow"]
strategies = ["single", "ddp"]
data = ["digits"]
layouts = ["nchw"]

[refused]
fp8_e4m3 = "nobody asked for it"
"tensorflow.tf32" = "not there"

[options.width]
type = "int"
help = "neurons"
min = 1
max = 9

[options.rate]
type = "float"
help = "a number"

[options.words]
type = "str"
help = "a text"

[options.sizes]
type = "int[]"
help = "sizes"
min = 1

[options.kind]
type = "str"
help = "which"
choices = ["a", "b"]

[options.bias]
type = "bool"
help = "whether"

[needs]
digits = { module = "sklearn" }

[[requires]]
when = { precision = "tf32", device = "cuda" }
setting = "model.options.width"
multiple_of = 4
because = "its units take four"

[[requires]]
when = { "model.options.kind" = "b" }
setting = "training.batch_size"
multiple_of = "model.options.width"
"""


@pytest.fixture
def nets(tmp_path: Path) -> Recipe:
    (tmp_path / "recipe.toml").write_text(TEXT)
    return read_recipe(tmp_path)


def with_options(**options: Any) -> Run:  # noqa: ANN401
    return replace(A_RUN, model=replace(A_RUN.model, options=options))


def test_what_a_recipe_can_do_is_let_through(nets: Recipe) -> None:
    check(with_options(width=3, sizes=[1, 2], kind="a", bias=True), nets)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (
            {"widht": 3},
            r"model.options=widht is not in the recipe .*: choose bias or kind or rate or sizes or width or words",
        ),
        ({"width": 0}, r"model.options.width=0 must be at least 1"),
        ({"width": 10}, r"model.options.width=10 must be at most 9"),
        ({"width": 1.5}, r"model.options.width=1.5 must be int"),
        ({"width": True}, r"model.options.width=True must be int"),
        ({"sizes": 3}, r"model.options.sizes=3 must be a list that is not empty"),
        ({"sizes": [1, 0]}, r"model.options.sizes=\[1, 0\] must be at least 1"),
        ({"kind": "c"}, r"model.options.kind='c' choose a, b"),
        ({"words": b"a\xff".decode(errors="surrogateescape")}, r"model.options.words='a.udcff' must be text in UTF-8"),
        ({"rate": float("nan")}, r"model.options.rate=nan must be a number"),
        ({"bias": 1}, r"model.options.bias=1 must be bool"),
    ],
)
def test_an_option_that_is_wrong_is_refused_by_name(nets: Recipe, options: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check(with_options(**options), nets)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"data": Data(name="faces")}, r"data=faces is not in the recipe"),
        ({"layout": Layout(name=LayoutName.nhwc)}, r"layout=nhwc is not in the recipe .*: choose nchw"),
        ({"model": Model(name="net", recipe="nets", framework="jax")}, r"model.framework=jax is not in the recipe"),
        (
            {"strategy": Strategy(name=StrategyName.mirrored, devices=2)},
            r"strategy=mirrored is not in the recipe .*: choose single or ddp",
        ),
        ({"precision": Precision(name=PrecisionName.fp8_e4m3)}, r"precision=fp8_e4m3 .*: nobody asked for it"),
        ({"model": Model(name="net", recipe="nets", framework="tensorflow")}, r"precision=tf32 .*: not there"),
    ],
)
def test_what_it_cannot_do_is_refused(nets: Recipe, changes: Mapping[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        check(replace(A_RUN, **changes), nets)


@pytest.mark.parametrize(
    ("options", "device", "complaint"),
    [
        ({"width": 3}, "cpu", None),
        (
            {"width": 3},
            "cuda",
            "model.options.width=3 with precision=tf32, device=cuda must be a multiple of 4: its units",
        ),
        (
            {"width": 3, "kind": "b"},
            "cpu",
            "training.batch_size=64 with model.options.kind=b, model.options.width=3 must",
        ),
        ({"kind": "b"}, "cpu", None),  # the recipe's own default decides
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    nets: Recipe, options: Mapping[str, Any], device: str, complaint: str | None
) -> None:
    if complaint is None:
        check_requirements(with_options(**options), nets, {"device": device})
        return
    with pytest.raises(ConfigError) as refused:
        check_requirements(with_options(**options), nets, {"device": device})
    assert str(refused.value).startswith(complaint)


@pytest.mark.parametrize(
    ("absent", "setting", "package"),
    [
        ("torch", "model.framework=torch", "'hpcml[torch]'"),
        ("scipy", "model=net", "scipy"),
        ("sklearn", "data=digits", "scikit-learn"),
    ],
)
def test_a_module_that_is_missing_is_named_with_what_to_install(
    nets: Recipe, absent: str, setting: str, package: str
) -> None:
    check_modules(A_RUN, nets, "/py", lambda _: True)
    with pytest.raises(ConfigError) as refused:
        check_modules(A_RUN, nets, "/py", lambda module: module != absent)
    assert str(refused.value) == (
        f"{setting}: the Python of this run (/py) has no {absent}: pip install {package}, "
        "or use a container that has it"
    )


def test_a_strategy_of_another_framework_is_refused(nets: Recipe) -> None:
    run = replace(
        A_RUN,
        model=replace(A_RUN.model, framework="tensorflow"),
        strategy=Strategy(name=StrategyName.ddp, processes_per_node=2),
    )
    with pytest.raises(ConfigError, match="strategy=ddp is nothing of tensorflow: choose single"):
        check(run, nets)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("summary =", "cannot be read"),
        ('summary = "x"', "frameworks"),
        ('summary = "x"\nframeworks = ["torch"]\ncolour = "red"', "unknown key colour"),
        ('summary = "x"\nframeworks = ["torch"]\nstrategies = ["dpp"]', "strategies: 'dpp' is none of single"),
        ('summary = "x"\nframeworks = ["torch"]\n[refused]\nfp31 = "no"', "refused: 'fp31' names no precision"),
        ('summary = "x"\nframeworks = ["torch"]\n[options.a]\ntype = "text"\nhelp = "x"', "options.a.type='text'"),
        (
            'summary = "x"\nframeworks = ["torch"]\n[needs]\nfaces = { path = "disk" }',
            "needs.faces.path='disk': choose file",
        ),
        (
            'summary = "x"\nframeworks = ["torch"]\n[[requires]]\nsetting = "model.options.b"\nat_least = 1',
            "requires: 'model.options.b' is no setting that it can ask for",
        ),
        (
            'summary = "x"\nframeworks = ["torch"]\n[[requires]]\nsetting = "data"\nwhen = { hue = 1 }\none_of = [1]',
            "requires: 'hue' is no setting",
        ),
    ],
)
def test_a_file_that_is_wrong_is_refused_with_its_name(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "recipe.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"recipe\.toml") as refused:
        read_recipe(tmp_path)
    assert complaint in str(refused.value)


def test_a_recipe_without_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"recipe.toml cannot be read"):
        read_recipe(tmp_path)


@pytest.mark.parametrize("folder", sorted(path.parent for path in resource_dir("recipes").glob("*/train.py")), ids=str)
def test_every_shipped_recipe_says_what_it_can_do(folder: Path) -> None:
    assert read_recipe(folder).summary


def test_options_are_part_of_what_a_run_is() -> None:
    assert with_options(width=3).spec_hash != with_options(width=4).spec_hash != A_RUN.spec_hash


def with_program(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "train.py").touch()
    return folder


def test_recipes_of_ones_own_are_found_beside_the_shipped_ones(tmp_path: Path) -> None:
    shipped, own = with_program(tmp_path / "shipped", "nets"), with_program(tmp_path / "recipes", "mine")
    (own / "notes").mkdir()

    assert own_recipes(tmp_path, shipped) == own
    assert find_program("mine", shipped, own) == own / "mine" / "train.py"
    assert find_program("nets", shipped, own) == shipped / "nets" / "train.py"
    assert recipe_names(shipped, own) == ["mine", "nets"]
    with pytest.raises(ConfigError, match=r"model.recipe=notes is not there: choose mine, nets"):
        find_program("notes", shipped, own)


def test_a_recipe_of_ones_own_cannot_have_the_name_of_a_shipped_one(tmp_path: Path) -> None:
    shipped, own = with_program(tmp_path / "shipped", "nets"), with_program(tmp_path / "recipes", "nets")

    with pytest.raises(ConfigError, match=r"model.recipe=nets ships with hpcml, and .*recipes/nets has the same name"):
        find_program("nets", shipped, own)


def test_in_hpcmls_own_folder_the_shipped_recipes_are_not_taken_for_the_users(tmp_path: Path) -> None:
    assert own_recipes(resource_dir("recipes").parent, resource_dir("recipes")) is None
    assert own_recipes(tmp_path, resource_dir("recipes")) is None


@pytest.mark.parametrize(
    ("framework", "precision", "device", "numerics", "reason"),
    [
        ("torch", "tf32", CPU, Numerics.emulated, None),
        ("torch", "fp32", CPU, Numerics.native, None),
        ("torch", "tf32", Device(kind="cuda", compute_capability=(7, 0)), None, "it needs compute capability 8.0"),
        ("torch", "tf32", Device(kind="cuda", compute_capability=(8, 0)), Numerics.native, None),
        ("torch", "fp8_e4m3", CPU, None, "nobody asked for it"),  # the recipe's own word comes first
        ("tensorflow", "tf32", Device(kind="cuda", compute_capability=(8, 0)), None, "not there"),
    ],
)
def test_what_becomes_of_a_precision_is_what_the_recipe_and_the_device_say(
    nets: Recipe, framework: str, precision: str, device: Device, numerics: Numerics | None, reason: str | None
) -> None:
    found = outcome(nets, framework, PrecisionName[precision], device, "x")

    assert (found.numerics, found.reason) == (numerics, reason)


HOPPER = Device(kind="cuda", name="H100", compute_capability=(9, 0))


@pytest.mark.parametrize("recipe", ["resnet", "unet"])
@pytest.mark.parametrize("precision", ["fp8_e4m3", "fp8_hybrid"])
def test_fp8_is_refused_on_a_gpu_where_a_recipe_has_convolutions(recipe: str, precision: str) -> None:
    found = read_recipe(resource_dir("recipes") / recipe)

    on_gpu = outcome(found, "torch", PrecisionName[precision], HOPPER, "h100")
    assert (on_gpu.numerics, "PyTorch has no convolution in FP8" in (on_gpu.reason or "")) == (None, True)
    assert outcome(found, "torch", PrecisionName[precision], CPU, "cpu").numerics is Numerics.emulated
    assert outcome(found, "torch", PrecisionName.amp_bf16, HOPPER, "h100").numerics is Numerics.native


def test_fp8_is_refused_on_a_gpu_for_the_small_network_with_convolutions_alone() -> None:
    found = read_recipe(resource_dir("recipes") / "image_classification")
    settings = {"model.framework": "torch", "device": "cuda", "precision": "fp8_e4m3"}

    refused = [
        [rule.complaint({**settings, "model": name}) for rule in found.requires] for name in ("mnist_cnn", "mnist_mlp")
    ]
    assert [sum(one is not None for one in complaints) for complaints in refused] == [1, 0]
