"""`hpcml recipes`: recipes, their options, and which precision each device can compute in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from hpcml.codec import encode
from hpcml.model.recipe import ListedRecipe, Option, PrecisionOutcome, Recipe
from hpcml.model.run import Model
from hpcml.report.document import Column, Document, Listing, Pairs, Section

_REFUSED = "refused"


def recipes_document(listed: Sequence[ListedRecipe]) -> Document:
    """Return one line for each recipe, "(yours)" marks the user's own.

    JSON has the content of each recipe.toml and the models that choose the recipe.
    """
    columns: list[Column[ListedRecipe]] = [
        Column("recipe", "recipe", lambda item: f"{item.recipe.name}{' (yours)' * item.is_own}"),
        Column("models", "models", lambda item: ", ".join(model.name for model in item.models)),
        Column("frameworks", "frameworks", lambda item: ", ".join(item.recipe.frameworks)),
        Column("strategies", "strategies", lambda item: ", ".join(item.recipe.strategies), is_short=False),
        Column("data", "data", lambda item: ", ".join(item.recipe.data) or "any", is_short=False),
        Column("summary", "summary", lambda item: item.recipe.summary),
    ]
    return Document.of(Listing(columns=columns, rows=listed), record=[_as_json(item) for item in listed])


def recipe_document(item: ListedRecipe) -> Document:
    """Return everything about one recipe, and a table of its options with their defaults in each model."""
    options = Listing(columns=_option_columns(item), rows=list(item.recipe.options.items()))
    return Document(
        sections=[Section(parts=[Pairs(values=_facts(item))]), *([Section(parts=[options])] if options.rows else [])],
        record=[_as_json(item)],
        data=[options],
    )


def _option_columns(item: ListedRecipe) -> list[Column[tuple[str, Option]]]:
    return [
        Column("model.options.", "model.options.", lambda row: row[0]),
        Column("type", "type", lambda row: row[1].type),
        Column("allowed", "allowed", lambda row: _allowed(row[1])),
        Column("default", "default", lambda row: _defaults(item, row[0])),
        Column("help", "help", lambda row: row[1].help),
    ]


def matrix_document(outcomes: Sequence[PrecisionOutcome]) -> Document:
    """Return one line for each recipe, framework and precision, with a column for each device; reasons stand below.

    A cell says native, emulated, or "refused 2", where 2 is the number of the reason. CSV and JSON have an object for
    each recipe, framework, precision and device; the reason is empty where it is not refused.
    """
    reasons = list(dict.fromkeys(item.reason for item in outcomes if item.reason is not None))
    cells = {(item.recipe, item.framework, item.precision.name, item.device): item for item in outcomes}
    rows = list(dict.fromkeys((item.recipe, item.framework, item.precision.name) for item in outcomes))

    def cell(row: tuple[str, str, str], device: str) -> str:
        item = cells[(*row, device)]
        return _outcome(item) if item.reason is None else f"{_REFUSED} {reasons.index(item.reason) + 1}"

    columns: list[Column[tuple[str, str, str]]] = [
        Column("", "recipe", lambda row: row[0]),
        Column("", "framework", lambda row: row[1]),
        Column("", "precision", lambda row: row[2]),
        *(_of_device(device, cell) for device in dict.fromkeys(item.device for item in outcomes)),
    ]
    flat: list[Column[PrecisionOutcome]] = [
        Column("recipe", None, lambda item: item.recipe),
        Column("framework", None, lambda item: item.framework),
        Column("precision", None, lambda item: item.precision.name),
        Column("device", None, lambda item: item.device),
        Column("outcome", None, _outcome),
        Column("reason", None, lambda item: item.reason),
    ]
    notes = [f"{_REFUSED} {number}: {reason}" for number, reason in enumerate(reasons, start=1)]
    table = Listing(columns=columns, rows=rows, notes=notes)
    return Document.of(table, data=[Listing(columns=flat, rows=outcomes)])


def _of_device(device: str, cell: Callable[[tuple[str, str, str], str], str]) -> Column[tuple[str, str, str]]:
    return Column("", device, lambda row: cell(row, device))


def _outcome(item: PrecisionOutcome) -> str:
    return _REFUSED if item.numerics is None else item.numerics.name


def _facts(item: ListedRecipe) -> dict[str, str]:
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
