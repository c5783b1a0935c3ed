"""`hpcml recipes`: recipes, their options, and which precision each device can compute in, in every format."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.text import Text

from hpcml.codec import encode
from hpcml.model.recipe import ListedRecipe, Option, PrecisionOutcome, Recipe
from hpcml.model.run import Model
from hpcml.report.render.data import json_text
from hpcml.report.render.rows import value_csv, value_json, value_markdown, value_table
from hpcml.report.text import safe

_HEADINGS = ("recipe", "models", "frameworks", "strategies", "data", "summary")
_DISPENSABLE = ("summary", "strategies", "data", "frameworks")  # where the terminal is too narrow
_OPTION_HEADINGS = ("model.options.", "type", "allowed", "default", "help")
_OUTCOME_HEADINGS = ("recipe", "framework", "precision", "device", "outcome", "reason")
_REFUSED = "refused"


def recipes_table(listed: Sequence[ListedRecipe], *, console: Console) -> RenderableType:
    """Return one line for each recipe; a narrow console leaves out columns. "(yours)" marks the user's own."""
    return value_table(_HEADINGS, _rows(listed), console=console, dispensable=_DISPENSABLE)


def recipes_markdown(listed: Sequence[ListedRecipe]) -> str:
    """Return the recipes as a Markdown table."""
    return value_markdown(_HEADINGS, _rows(listed))


def recipes_csv(listed: Sequence[ListedRecipe]) -> str:
    """Return the recipes as CSV."""
    return value_csv(_HEADINGS, _rows(listed))


def recipes_json(listed: Sequence[ListedRecipe]) -> str:
    """Return a JSON list with the content of each recipe.toml and the models that choose the recipe."""
    return json_text([_as_json(item) for item in listed])


def recipe_details(item: ListedRecipe, *, console: Console) -> RenderableType:
    """Return everything about one recipe, and a table of its options with their defaults in each model."""
    lines = [Text(f"{safe(key):12}{safe(value)}") for key, value in _words(item).items() if value]
    if not item.recipe.options:
        return Group(*lines)
    return Group(*lines, Text(), value_table(_OPTION_HEADINGS, list(_options(item)), console=console))


def recipe_markdown(item: ListedRecipe) -> str:
    """Return everything about one recipe as Markdown."""
    facts = value_markdown(("", item.recipe.name), [(key, value) for key, value in _words(item).items() if value])
    return f"{facts}\n{recipe_options(item)}" if item.recipe.options else facts


def recipe_options(item: ListedRecipe) -> str:
    """Return the options of one recipe as a Markdown table."""
    return value_markdown(_OPTION_HEADINGS, list(_options(item)))


def recipe_csv(item: ListedRecipe) -> str:
    """Return the options of one recipe as CSV."""
    return value_csv(_OPTION_HEADINGS, list(_options(item)))


def matrix_table(outcomes: Sequence[PrecisionOutcome], *, console: Console) -> RenderableType:
    """Return one line for each recipe, framework and precision, with a column for each device; reasons stand below.

    A cell says native, emulated, or "refused 2", where 2 is the number of the reason.
    """
    headings, rows, reasons = _matrix(outcomes)
    return Group(value_table(headings, rows, console=console), *(Text(safe(line)) for line in ("", *reasons)))


def matrix_markdown(outcomes: Sequence[PrecisionOutcome]) -> str:
    """Return the same table as Markdown."""
    headings, rows, reasons = _matrix(outcomes)
    return "\n".join([value_markdown(headings, rows), *(f"- {line}" for line in reasons), ""])


def matrix_csv(outcomes: Sequence[PrecisionOutcome]) -> str:
    """Return one line for each recipe, framework, precision and device; the reason is empty where it is not refused."""
    return value_csv(_OUTCOME_HEADINGS, [_outcome(item) for item in outcomes])


def matrix_json(outcomes: Sequence[PrecisionOutcome]) -> str:
    """Return a JSON list with an object for each recipe, framework, precision and device."""
    return value_json(_OUTCOME_HEADINGS, [_outcome(item) for item in outcomes])


def _rows(listed: Sequence[ListedRecipe]) -> list[tuple[str, ...]]:
    return [
        (
            f"{item.recipe.name} (yours)" if item.is_own else item.recipe.name,
            ", ".join(model.name for model in item.models),
            ", ".join(item.recipe.frameworks),
            ", ".join(item.recipe.strategies),
            ", ".join(item.recipe.data) or "any",
            item.recipe.summary,
        )
        for item in listed
    ]


def _words(item: ListedRecipe) -> dict[str, str]:
    recipe = item.recipe
    return {
        "recipe": recipe.name,
        "summary": recipe.summary,
        "folder": str(item.folder),
        "models": ", ".join(_with_framework(model, recipe) for model in item.models) or "none chooses it",
        "frameworks": ", ".join(recipe.frameworks),
        "strategies": ", ".join(recipe.strategies),
        "data": ", ".join(recipe.data) or "any",
        "layouts": ", ".join(recipe.layouts) or "any",
        "metrics": ", ".join(recipe.metrics),
        "trains": "nothing: it measures rates" if recipe.measures else "",
        "needs": "; ".join(_needs(recipe)),
        "refuses": "; ".join(f"{name}: {reason}" for name, reason in recipe.refused.items()),
        "requires": "; ".join(map(str, recipe.requires)),
    }


def _with_framework(model: Model, recipe: Recipe) -> str:
    """Return the model's name and framework, which is only where it begins if the recipe has several."""
    return f"{model.name} ({model.framework}{' by default' if len(recipe.frameworks) > 1 else ''})"


def _needs(recipe: Recipe) -> Iterator[str]:
    """Yield the modules that the recipe imports besides its framework, and the source of its data."""
    yield from recipe.modules
    for name, needs in recipe.needs.items():
        read_from = " and ".join(word for word in (needs.path and f"data.path={needs.path}", needs.module) if word)
        yield f"data={name}: {read_from}"


def _options(item: ListedRecipe) -> Iterator[tuple[str, str, str, str, str]]:
    for name, option in item.recipe.options.items():
        yield name, option.type, _allowed(option), _defaults(item, name), option.help


def _allowed(option: Option) -> str:
    if option.choices:
        return ", ".join(option.choices)
    bounds = ((">=", option.min), ("<=", option.max))
    return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)


def _defaults(item: ListedRecipe, name: str) -> str:
    """Return the default of an option; where models differ, that of each."""
    values = {model.name: _typed(model.options[name]) for model in item.models if name in model.options}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return ", ".join(f"{value} ({model})" for model, value in values.items())


def _typed(value: object) -> str:
    """Return *value* as one would type it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_typed, value))}]"
    return "null" if value is None else str(value)


def _matrix(outcomes: Sequence[PrecisionOutcome]) -> tuple[list[str], list[tuple[str, ...]], list[str]]:
    """Return headings, rows and numbered reasons, in the order in which rows refer to them."""
    devices = list(dict.fromkeys(item.device for item in outcomes))
    numbers: dict[str, int] = {}
    cells: dict[tuple[str, str, str], dict[str, str]] = {}
    for item in outcomes:
        key = (item.recipe, item.framework, item.precision.name)
        if item.reason is not None:
            numbers.setdefault(item.reason, len(numbers) + 1)
            cells.setdefault(key, {})[item.device] = f"{_REFUSED} {numbers[item.reason]}"
        else:
            cells.setdefault(key, {})[item.device] = str(_word(item))
    rows = [(*key, *(row[device] for device in devices)) for key, row in cells.items()]
    reasons = [f"{_REFUSED} {number}: {reason}" for reason, number in numbers.items()]
    return ["recipe", "framework", "precision", *devices], rows, reasons


def _outcome(item: PrecisionOutcome) -> tuple[str | None, ...]:
    return item.recipe, item.framework, item.precision.name, item.device, _word(item), item.reason


def _word(item: PrecisionOutcome) -> str:
    return _REFUSED if item.numerics is None else item.numerics.name


def _as_json(item: ListedRecipe) -> dict[str, object]:
    recipe = item.recipe
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "folder": str(item.folder),
        "own": item.is_own,
        "frameworks": recipe.frameworks,
        "strategies": recipe.strategies,
        "data": recipe.data,
        "layouts": recipe.layouts,
        "metrics": recipe.metrics,
        "measures": recipe.measures,
        "modules": recipe.modules,
        "needs": encode(recipe.needs),
        "refused": recipe.refused,
        "requires": encode(recipe.requires),
        "options": {
            name: {
                "type": option.type,
                "help": option.help,
                "min": option.min,
                "max": option.max,
                "choices": option.choices,
            }
            for name, option in recipe.options.items()
        },
        "models": [
            {"name": model.name, "framework": model.framework, "options": model.options} for model in item.models
        ],
    }
