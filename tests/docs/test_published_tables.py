"""Tables of others: whole, as printed, and with the arithmetic that their own figures must bear out."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from docs.published_tables import PublishedTable, published_tables
from hpcml.model import hardware


def table(key: str) -> PublishedTable:
    [found] = [each for each in published_tables() if each.key == key]
    return found


def known(key: str, title: str) -> list[Decimal]:
    return [value for value in table(key).numbers(title) if value is not None]


def test_the_tables_of_accuracies_are_whole() -> None:
    counted = {each.key: len(each.rows) for each in published_tables() if each.key.startswith("tf32_")}

    assert counted == {"tf32_classification": 24, "tf32_detection": 17, "tf32_language": 14}
    assert {each.key: len(each.rows) for each in published_tables()}.items() >= {
        ("a100_v100", 10),
        ("transformer_scale", 10),
        ("gpu_specifications", 39),
        ("word2vec", 10),
    }


@pytest.mark.parametrize(
    ("key", "total", "low", "high"),
    [
        ("tf32_classification", "0.81", "-0.15", "0.25"),
        ("tf32_detection", "1.09", "-0.11", "0.18"),
        ("tf32_language", "-0.69", "-1.01", "0.27"),
    ],
)
def test_differences_are_those_of_the_printed_digits(key: str, total: str, low: str, high: str) -> None:
    differences = known(key, "TF32 - FP32")

    assert sum(differences) == Decimal(total)
    assert (min(differences), max(differences)) == (Decimal(low), Decimal(high))


def test_printed_speed_ups_are_quotients_of_the_peaks_beside_them() -> None:
    for key, quotient in (("a100_v100", "A100 / V100"), ("claims", "over / under")):
        pairs = [
            (float(printed), float(computed))
            for printed, computed in zip(table(key).numbers("printed"), table(key).numbers(quotient), strict=True)
            if printed is not None and computed is not None
        ]
        assert len(pairs) == 8
        for printed, computed in pairs:
            assert computed == pytest.approx(printed, rel=0.012), key


def test_peaks_in_claims_are_those_of_the_table_of_gpus() -> None:
    a100, v100 = (hardware.find_gpu(name) for name in ("NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"))
    assert a100 is not None
    assert v100 is not None

    dense = {a100.peaks[name].tflops for name in ("fp16", "tf32", "fp32")}
    below = {a100.peaks["fp32"].tflops, a100.peaks["tf32"].tflops, v100.peaks["fp32"].tflops, v100.peaks["fp16"].tflops}
    assert {float(value) for value in known("claims", "over")} - {624.0} <= dense  # 624: sparse
    assert {float(value) for value in known("claims", "under")} <= below


def test_machines_add_up() -> None:
    assert known("systems", "GPU memory") == [8 * 40, 16 * 32, 8 * 16, 6 * 16, 4608 * 6 * 16]
    links = {row[0]: row[3] for row in table("blackwell").rows}
    assert float(links["GB200 NVL72"]) == pytest.approx(72 * 1.8)
    full, sold = known("dies", "GA100"), known("dies", "A100")
    assert (full[1] * 64, full[5] * 512, sold[1] * 64, sold[5] * 512) == (full[2], full[6], sold[2], sold[6])


def test_every_table_says_where_it_is_from() -> None:
    for each in published_tables():
        assert each.source
        assert each.rows
        assert all(any(row) for row in each.rows)


def test_a_row_that_does_not_fit_is_no_table() -> None:
    good = table("dies")

    with pytest.raises(ValueError, match="dies: 2 cells for 3 columns"):
        replace(good, rows=[["GPCs", "8"]])
    with pytest.raises(ValueError, match="dies: GA100 is no number: 'eight'"):
        replace(good, rows=[["GPCs", "eight", "7"]])
