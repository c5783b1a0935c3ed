from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hpcml.interop.exported import Export, last_value
from hpcml.interop.openmetrics_export import write_openmetrics
from hpcml.model.records import MetricSummary, RunRecord
from tests.cli.command_line import Hpcml, said_in_one_line
from tests.effort import times
from tests.interop.exchanging import EVIL, ODD, OPEN, PLAIN, real
from tests.report.report_values import run, summary
from tests.store.building import T0

Samples = dict[tuple[str, str, str | None], float]


def parsed(text: str, parser: str = "prometheus_client.openmetrics.parser") -> list[Any]:
    families = real(parser).text_string_to_metric_families(text)
    return [sample for family in families for sample in family.samples]


def by_run(samples: list[Any]) -> Samples:
    return {(at.name, at.labels["run"], at.labels.get("metric")): at.value for at in samples}


def test_prometheus_reads_states_times_and_last_values(hpcml: Hpcml) -> None:
    done = hpcml("export", "--to", "openmetrics")
    assert done.returncode == 0, done.stderr

    samples = parsed(done.stdout)
    values = by_run(samples)
    assert values["hpcml_metric_loss", PLAIN, "loss"] == 0.2
    assert values["hpcml_step", PLAIN, "loss"] == 4
    assert values["hpcml_metric_val_accuracy", PLAIN, "val/accuracy"] == 0.4
    assert values["hpcml_run_wall_seconds", PLAIN, None] == 10
    assert values["hpcml_run_start_time_seconds", PLAIN, None] == T0
    assert values["hpcml_run_energy_joules", PLAIN, None] == 2500.0
    assert ("hpcml_run_energy_joules", ODD, None) not in values  # nothing was measured of it
    states = {at.labels["run"]: at.labels["state"] for at in samples if at.name == "hpcml_run_state"}
    assert states == {PLAIN: "COMPLETED", ODD: "FAILED", OPEN: "RUNNING"}
    names = {at.labels["run"]: at.labels["name"] for at in samples if at.name == "hpcml_run_info"}
    assert names == {PLAIN: "baseline", ODD: EVIL, OPEN: ""}
    assert math.isnan(values["hpcml_metric_loss", ODD, "loss"])
    assert (values["hpcml_metric_loss_1", ODD, "loss@1"], values["hpcml_metric_loss_1", ODD, "loss_1"]) == (4.0, 8.0)


def test_the_older_text_format_reads_the_same(hpcml: Hpcml) -> None:
    text = hpcml("export", "--to", "openmetrics", PLAIN, OPEN).stdout

    assert by_run(parsed(text, "prometheus_client.parser")) == by_run(parsed(text))


def test_a_file_is_replaced_whole_and_no_run_is_an_answer(hpcml: Hpcml) -> None:
    target = hpcml.cwd / "hpcml.prom"
    assert hpcml("export", "--to", "openmetrics", "-o", "hpcml.prom").returncode == 0
    assert parsed(target.read_text(encoding="utf-8"))

    done = hpcml("export", "--to", "openmetrics", "-o", "hpcml.prom", "--state", "cancelled")

    assert done.returncode == 0, done.stderr
    assert parsed(target.read_text(encoding="utf-8")) == []
    assert [path.name for path in hpcml.cwd.iterdir()] == ["hpcml.prom"]
    target.write_text("# of another program\n")
    assert "was not written by this export" in said_in_one_line(
        hpcml("export", "--to", "openmetrics", "-o", "hpcml.prom")
    )


@settings(deadline=None, max_examples=times(30, 100))
@given(
    st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True),
    st.text(),
    st.floats(allow_nan=False),
)
def test_no_word_breaks_the_format(metrics: list[str], name: str, value: float) -> None:
    real("prometheus_client")
    words = [word.encode("utf-8", "replace").decode() for word in metrics]
    found: dict[str, MetricSummary] = {word: summary(word, value) for word in words}
    record: RunRecord = replace(run(), name=name, metrics=found)
    file = io.StringIO()

    write_openmetrics(Export(records=[record], t_zero={}, runs=()), file)

    samples = parsed(file.getvalue())
    read = {at.labels["metric"]: at.value for at in samples if at.name.startswith("hpcml_metric_")}
    assert read == dict.fromkeys(words, value)
    (info,) = (at for at in samples if at.name == "hpcml_run_info")
    assert info.labels["name"] == name.encode("utf-8", "replace").decode()


def test_an_exporter_of_contract_1_has_nan_for_what_is_not_finite() -> None:
    without = replace(summary("loss", 1.0), last=None, n_nonfinite=1)
    record = replace(run(), metrics={"loss": without, "ppl": summary("ppl", 2.5)})

    assert math.isnan(last_value(record, "loss") or 0.0)
    assert last_value(record, "ppl") == 2.5
