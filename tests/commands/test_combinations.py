"""All that can be chosen together is planned on every cluster that admits it, or refused in a line with a setting.

Hydra composes each option once; what runs are made of is then put together here, so that thousands of combinations are
checked by the rules that every run is checked by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcml.agent.telemetry.gpus import Gpu
from hpcml.commands.submit.backends import Machine
from hpcml.commands.submit.check import plan_all
from hpcml.commands.submit.plan import Planned
from hpcml.config.compose import Composed, compose_from_cli
from hpcml.errors import ConfigError
from hpcml.model.choices import Numerics
from hpcml.model.cluster import SchedulerName
from hpcml.model.precision import CPU, Device
from hpcml.model.recipe import Recipe, find_program, outcome, read_recipe
from hpcml.model.run import Run
from hpcml.model.strategy import KINDS, Processes, StrategyName
from hpcml.paths import resource_dir
from tests.commands.starting import Modules, load_modules, refused_at_start
from tests.effort import times

SETTING = re.compile(
    r"\b(model|data|precision|strategy|layout|container|cluster|resources|training|workload|schedule)(\.\w+)*\b"
)
LAPTOP = Machine(cores=16, gpus=[])
V100S = Machine(
    cores=16,
    gpus=[
        Gpu(uuid=f"GPU-{at}", name="Tesla V100", compute_capability=(7, 0), memory_mb=16384, driver="550.54")
        for at in range(4)
    ],
)
GPUS = (None, 0, 1, 2, 4)  # resources.gpus_per_node; None: as the profile says
PROCESSES = (None, 2)
Choice = Mapping[str, Run]


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every option of each group, in a run that is otherwise as default."""

    models: Choice
    data: Choice
    precisions: Choice
    strategies: Choice
    layouts: Choice
    clusters: Choice

    def __repr__(self) -> str:
        return "Options()"  # Hypothesis would print 300 kB, and warns of that


def names(group: str, *, without: Sequence[str] = ()) -> list[str]:
    return [path.stem for path in sorted((resource_dir("conf") / group).glob("*.yaml")) if path.stem not in without]


def composed(group: str, options: Sequence[str], *words: str, project: Path) -> Choice:
    points = compose_from_cli(["-m", f"{group}={','.join(options)}", *words], project=project)
    return dict(zip(options, (point.run for point in points), strict=True))


def made_for(data: str, folder: Path) -> Path:
    """Return a path of the kind that *data* is read from, with something in it."""
    found = (read_recipe(path.parent).needs.get(data) for path in resource_dir("recipes").glob("*/recipe.toml"))
    (kind,) = {needs.path for needs in found if needs is not None}
    place = folder / data
    if kind != "file":
        place.mkdir()
    (place if kind == "file" else place / "file").write_text("x")
    return place


@pytest.fixture(scope="module")
def modules() -> Modules:
    return load_modules()


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    project = tmp_path_factory.mktemp("project")
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (resource_dir("conf") / "data").glob("*.yaml")}
    needy = [name for name, text in texts.items() if "needs_path: true" in text]
    paths = {name: f"data.path={made_for(name, project)}" for name in needy}
    strategies = [name for name in names("strategy") if KINDS[StrategyName[name]].on_gpus]
    alone = [name for name in strategies if KINDS[StrategyName[name]].fewest_devices == 1]
    parallel = [name for name in strategies if name not in alone]
    on_cpus = [name for name in names("strategy") if name not in strategies]
    return Options(
        models=composed("model", names("model", without=["custom"]), project=project),
        data={
            **composed("data", names("data", without=needy), project=project),
            **{
                key: run
                for name in needy
                for key, run in composed("data", [name], paths[name], project=project).items()
            },
        },
        precisions=composed("precision", names("precision"), project=project),
        strategies={
            **composed("strategy", [*alone, *on_cpus], project=project),
            **composed("strategy", parallel, "+cluster=karolina", "resources.gpus_per_node=4", project=project),
        },
        layouts=composed("layout", names("layout"), project=project),
        clusters=composed("cluster", names("cluster"), project=project),
    )


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """One option of each group; no data: what the model brings along."""

    model: str
    precision: str
    strategy: str = "single"
    layout: str = "nchw"
    cluster: str = "local"
    data: str | None = None
    gpus: int | None = None
    processes: int | None = None
    machine: Machine = LAPTOP
    training: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)  # of a pipeline
    model_options: Mapping[str, Any] = field(default_factory=dict)


def plan(options: Options, chosen: Chosen) -> Planned:
    """Put the run together and plan it, as `hpcml run --dry-run` does after it has composed."""
    base, site = options.models[chosen.model], options.clusters[chosen.cluster]
    gpus = site.resources.gpus_per_node if chosen.gpus is None else chosen.gpus
    run = replace(
        base,
        data=base.data if chosen.data is None else options.data[chosen.data].data,
        precision=options.precisions[chosen.precision].precision,
        model=replace(base.model, options={**base.model.options, **chosen.model_options}),
        training=replace(base.training, **chosen.training),
        strategy=replace(
            options.strategies[chosen.strategy].strategy, processes_per_node=chosen.processes, **chosen.schedule
        ),
        layout=options.layouts[chosen.layout].layout,
        cluster=site.cluster,
        resources=replace(site.resources, gpus_per_node=gpus, account="OPEN-1-1"),
    )
    # whatever this Python has: test_planned_refusals.py looks at what is missing
    (planned,) = plan_all([Composed(run=run, overrides=(), user_config=())], chosen.machine, lambda _: True)
    return planned


def settle(options: Options, chosen: Chosen) -> Planned | str:
    """Return what is planned, or why it is refused."""
    try:
        return plan(options, chosen)
    except ConfigError as error:
        return str(error)


def is_planned(options: Options, chosen: Chosen) -> bool:
    """Tell whether it is planned; where it is refused, that must take one line and name a setting."""
    found = settle(options, chosen)
    if isinstance(found, str):
        assert SETTING.search(found), (chosen, found)
        assert "\n" not in found, (chosen, found)
        return False
    assert found.run.model.recipe is not None
    assert found.plan.argv[1].endswith(f"{found.run.model.recipe}/train.py")
    assert found.plan.numerics is not Numerics.auto
    assert found.plan.processes_per_node >= 1
    assert (found.plan.gpus_per_node >= 1) == (found.plan.device == "cuda")
    return True


def recipe_of(run: Run) -> Recipe:
    return read_recipe(find_program(str(run.model.recipe), resource_dir("recipes"), None).parent)


def pairs(options: Options) -> Iterator[Chosen]:
    """Every two options of different groups together, the rest as default."""
    fields = {
        "model": list(options.models),
        "precision": list(options.precisions),
        "strategy": list(options.strategies),
        "layout": list(options.layouts),
        "cluster": list(options.clusters),
        "data": list(options.data),
    }
    start = Chosen(model="mnist_cnn", precision="fp32")
    for first, second in product(fields, fields):
        if first < second:
            for here, there in product(fields[first], fields[second]):
                yield replace(start, **{first: here, second: there})  # type: ignore[arg-type] # names of groups


@pytest.mark.nightly("long")
def test_every_two_options_are_planned_or_refused_by_a_setting(options: Options) -> None:
    planned = [chosen for chosen in pairs(options) if is_planned(options, chosen)]

    alone = {name for name, run in options.models.items() if "single" in recipe_of(run).strategies}
    assert {chosen.model for chosen in planned} == alone
    assert {chosen.precision for chosen in planned} == set(options.precisions)
    assert {chosen.layout for chosen in planned} == set(options.layouts)
    assert {chosen.cluster for chosen in planned} == set(options.clusters)
    assert {chosen.data for chosen in planned} >= {None, *options.data} - {"custom"}


def test_every_strategy_is_good_for_some_model(options: Options) -> None:
    unused = set(options.strategies)
    for model, strategy, gpus, processes in product(options.models, options.strategies, GPUS, PROCESSES):
        chosen = Chosen(model=model, precision="fp32", strategy=strategy, gpus=gpus, processes=processes, machine=V100S)
        if strategy in unused and is_planned(options, chosen):
            unused.remove(strategy)

    frameworks = {run.model.framework for run in options.models.values()}
    assert not {name for name in unused if set(KINDS[StrategyName[name]].frameworks) & frameworks}


@pytest.mark.nightly("long")
@settings(deadline=None, max_examples=times(50, 400), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(draw=st.data())
def test_any_combination_is_planned_or_refused_by_a_setting(options: Options, draw: st.DataObject) -> None:
    chosen = Chosen(
        model=draw.draw(st.sampled_from(sorted(options.models))),
        precision=draw.draw(st.sampled_from(sorted(options.precisions))),
        strategy=draw.draw(st.sampled_from(sorted(options.strategies))),
        layout=draw.draw(st.sampled_from(sorted(options.layouts))),
        cluster=draw.draw(st.sampled_from(sorted(options.clusters))),
        data=draw.draw(st.sampled_from([None, *sorted(options.data)])),
        gpus=draw.draw(st.sampled_from(GPUS)),
        processes=draw.draw(st.sampled_from(PROCESSES)),
        machine=draw.draw(st.sampled_from([LAPTOP, V100S])),
    )
    is_planned(options, chosen)


def some_of(**choices: Sequence[object]) -> st.SearchStrategy[dict[str, object]]:
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in choices.items()})


TRAININGS = some_of(batch_size=[1, 6, 12, 63, 64], accumulate=[1, 2, 3], compile=[False, True])
SCHEDULES = some_of(microbatches=[None, 1, 2, 3], schedule=["gpipe", "1f1b"])
KINDS_OF_TRANSFORMER = ["decoder", "encoder", "encoder_decoder"]
OPTIONS = st.fixed_dictionaries(  # that some other setting asks something of
    {
        "lu": some_of(factorisation=["blocked", "library"]),
        "staleness": some_of(workers=[1, 3, 4]),
        "transformer": some_of(heads=[1, 3, 4], width=[12, 16], layers=[2, 3], kind=KINDS_OF_TRANSFORMER),
    }
)


PLACES: Mapping[Processes, Sequence[Mapping[str, Any]]] = {  # where there is room for a strategy
    Processes.one: [{}, {"machine": V100S, "gpus": 1}, {"schedule": {"devices": 2}}, {"schedule": {"devices": 3}}],
    Processes.per_node: [{"processes": 2}, {"processes": 3}, {"machine": V100S, "gpus": 2}],
    Processes.per_device: [{"processes": 2}, {"processes": 3}, {"machine": V100S, "gpus": 4}],
}


@settings(deadline=None, max_examples=times(50, 1000), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    named=some_of(model=names("model", without=["custom"]), precision=names("precision"), layout=names("layout")),
    nth=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    training=TRAININGS,
    schedule=SCHEDULES,
    of_recipes=OPTIONS,
)
def test_what_is_planned_is_not_refused_at_the_start_for_its_settings(
    options: Options,
    modules: Modules,
    named: Mapping[str, Any],
    nth: tuple[int, int],
    training: Mapping[str, Any],
    schedule: Mapping[str, Any],
    of_recipes: Mapping[str, Mapping[str, Any]],
) -> None:
    recipe = recipe_of(options.models[named["model"]])
    strategy = recipe.strategies[nth[0] % len(recipe.strategies)]
    places = PLACES[KINDS[StrategyName[strategy]].processes]
    asked = Chosen(
        **named,
        strategy=strategy,
        training=training,
        model_options=of_recipes.get(recipe.name, {}),
        **places[nth[1] % len(places)],
    )
    found = settle(options, replace(asked, schedule=schedule) if strategy == "pipeline" else asked)

    assert isinstance(found, str) or refused_at_start(found, modules) is None


@pytest.mark.parametrize("machine", [LAPTOP, V100S], ids=["cpu", "v100"])
def test_the_matrix_says_what_planning_does(options: Options, machine: Machine) -> None:
    device = Device(kind="cuda", name="x", compute_capability=(7, 0)) if machine.gpus else CPU
    for model, precision in product(options.models, options.precisions):
        run = options.models[model]
        assert run.cluster.scheduler is SchedulerName.local
        recipe = recipe_of(run)
        said = outcome(recipe, str(run.model.framework), options.precisions[precision].precision.name, device, "x")
        if "single" not in recipe.strategies:
            continue  # how many devices it wants is another question
        gpus = 1 if machine.gpus else 0
        layout = recipe.layouts[0] if recipe.layouts else "nchw"
        chosen = Chosen(model=model, precision=precision, layout=layout, gpus=gpus, machine=machine)
        found = settle(options, chosen)
        if isinstance(found, str):
            assert said.reason is not None, found
            assert said.reason in found
        else:
            assert found.plan.numerics is said.numerics
