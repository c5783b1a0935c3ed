"""``hpcml scaling``: show what more GPUs, nodes or threads gain, and when they pay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from hpcml.cli.options import Number, WholeNumber, output_in, pass_places, selecting, words_of
from hpcml.paths import Places
from hpcml.report.render.forms import Output, document_output

if TYPE_CHECKING:
    from hpcml.commands.selection import Selection

_OVER = ("gpus", "nodes", "processes", "threads")


@click.command()
@click.option("--over", type=click.Choice(_OVER), help="What is counted; default: the first of these that differs.")
@click.option(
    "--kind",
    type=click.Choice(["strong", "weak", "auto"]),
    default="auto",
    help="One batch for all, or one that grows; auto finds both.",
)
@click.option(
    "--reference", type=WholeNumber(min=1), metavar="N", help="What speed-ups are against; default: the fewest."
)
@click.option(
    "--least-gain", type=Number(0, 1, max_open=True), default=0.05, help="More devices that gain less do not help."
)
@click.option(
    "--least-efficiency", type=Number(0, 1, min_open=True), default=0.5, help="Devices that are used worse do not pay."
)
@click.option("--allow", multiple=True, metavar="WORD[,WORD]", help="Settings and facts that may differ, too.")
@click.option("--allow-mixed", is_flag=True, help="Look although other facts differ; they are listed.")
@selecting
@output_in("json", "csv", "md")
@pass_places
def scaling(
    places: Places,
    /,
    over: str | None,
    allow: tuple[str, ...],
    selection: Selection,
    **wish: Any,  # noqa: ANN401 - what a `ScalingRequest` has
) -> Output[Any]:
    """Show what more GPUs, nodes, processes or CPU threads gain: speed-up, efficiency, cost, and when they pay."""
    from hpcml.analysis.scaling.cells import Over
    from hpcml.analysis.scaling.study import ScalingRequest
    from hpcml.commands import scaling as operation
    from hpcml.report.scaling import scaling_document

    question = ScalingRequest(over=None if over is None else Over[over], allow=words_of(allow), **wish)
    return document_output(scaling_document(operation.scale_runs(places, selection, question)))
