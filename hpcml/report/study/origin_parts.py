"""How the numbers of a report came about, and what to type to get them again."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from hpcml.publication import Publication
from hpcml.report.comparison_cells import closing, heading, introduction
from hpcml.report.study.entries import figure, number_column, text_column, words
from hpcml.report.study.parts import Commands, Listed, Paragraph, Part, Section, Table


def methods_section(publication: Publication) -> Section:
    """Return what each kind of number is and how it was computed."""
    return Section(heading="How the numbers were obtained", parts=[Listed(lines=list(_methods(publication)))])


def _methods(publication: Publication) -> Iterator[str]:
    comparison = publication.comparison
    if comparison is not None:
        yield introduction(comparison) + "."
        yield (
            "The unit is the seed: a run gives one number, the last value of its metric, and runs with the same seed "
            "are averaged first. Means and speed-ups have 95 % intervals of Student's t; differences have 90 % "
            "intervals, paired by seed where all arms have the same seeds, else by Welch."
        )
        yield (
            "A verdict compares the 90 % interval of the difference with a margin: equivalent, it lies inside; better "
            "or worse, it lies on one side of zero; non-inferior, its worse end lies inside; inconclusive, these runs "
            "cannot tell, which never means that there is no difference. The larger p value of two one-sided tests "
            "(TOST) says the same as the interval."
        )
        yield from _cells(publication)
        yield (
            "Speed is the median step time in steady state, over the same steps of all arms; speed-ups are ratios of "
            "time per sample, computed on logarithms. Only runs that were all computed natively have a speed."
        )
        if any(row.cost for cell in comparison.cells for row in cell.rows):
            yield (
                "Energy is that of the GPU boards alone, of whole runs, as the table says by which method and in "
                "which scope; CO2 is that energy times the factor of the cluster's profile, whose source stands in "
                "the table."
            )
        if (warning := closing(comparison)) is not None:
            yield f"{warning}."
    if publication.curves:
        yield (
            "Curves: the band is the 95 % interval of the mean over seeds, at each place by itself, as far as all "
            "seeds go. A curve with too many points is cut into stretches, and the smallest and the largest value of "
            "each stay."
        )
    for what, why in publication.left_out.items():
        yield f"{what} is not in this report: {'; '.join(line.strip() for line in why.splitlines())}."
    yield "Effective precision is what a probe measured on the device of the run, not what was asked for."
    yield (
        f"Made by hpcml {publication.hpcml_version} at {publication.made_at} out of {len(publication.runs)} runs. An "
        "empty place in a table means that the value was not measured."
    )


def _cells(publication: Publication) -> Iterator[str]:
    assert publication.comparison is not None
    for cell in publication.comparison.cells:
        said = []
        if cell.margin is not None:
            config = cell.margin_source == "config"
            source = "fixed in the configuration before the runs" if config else "given afterwards, on the command line"
            said.append(f"margin {cell.margin:g}, {source}")
        if cell.steady_from_step is not None:
            said.append(f"step times over steps {cell.steady_from_step} to {cell.steady_to_step}")
        if said:
            yield f"{heading(cell)}: {'; '.join(said)}."


def reproduction_section(publication: Publication) -> Section:
    """Return the commands that submitted the runs and the one that makes the report."""
    parts: list[Part] = []
    origins = publication.origins
    if origins:
        parts.append(Paragraph(text="The runs were submitted by:"))
        parts.append(Commands(lines=[shlex.join(origin.command_line) for origin in origins]))
        columns = [
            text_column("command"),
            number_column("runs"),
            text_column("in the folder"),
            text_column("git commit"),
            text_column("hpcml"),
        ]
        rows = [
            [
                words(shlex.join(origin.command_line)),
                figure(origin.n_runs),
                words(origin.cwd),
                words(
                    None if origin.git_commit is None else f"{origin.git_commit}{' + changes' * bool(origin.git_dirty)}"
                ),
                words(origin.hpcml_version),
            ]
            for origin in origins
        ]
        parts.append(Table(caption="Where each command was typed, and with which code", columns=columns, rows=rows))
    if publication.without_origin:
        lines = [f"{n} runs: {why}" for why, n in sorted(publication.without_origin.items())]
        parts += [Paragraph(text="Of these runs the command is not known:"), Listed(lines=lines)]
    parts.append(Paragraph(text="This report is made again by:"))
    parts.append(Commands(lines=[shlex.join(publication.command_line)]))
    return Section(heading="Reproduce", parts=parts)
