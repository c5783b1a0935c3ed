from itertools import product
from pathlib import Path
from zlib import crc32

import pytest

from hpcml.errors import HpcmlError
from hpcml.runs.journal import Metrics, parse_chunk, read_journal, read_on, read_piece, unread

HEADER = b'{"hpcml":1,"journal":"j","run":"r","attempt":0,"writer":"rank0","host":"h","pid":1,"t0":1.5}\n'


def metric(step: int, text: str = "0.5") -> bytes:
    return f'{{"s":{step + 1},"t":0.1,"k":"m","i":{step},"v":{{"loss":{text}}}}}\n'.encode()


NO_RECORDS = (
    b"\0" * 512,
    b'{"s":1,"t":0.1,"k":"m","i":1e999,"v":{"loss":1}}',
    b'{"s":1e999,"t":0.1,"k":"m","i":1,"v":{"loss":1}}',
    b'{"s":1,"t":0.1,"k":"m","i":1,"v":{"loss":' + b"9" * 400 + b"}}",
    b"[" * 100_000,
    b'{"s":1,"t":0.1,"k":"m","i":1,"v":{"loss":true}}',
    b'{"s":1,"t":0.1,"k":"m","i":1,"v":{"loss":"much"}}',
    b'{"s":1,"t":0.1,"k":"m","i":1,"v":[1]}',
    b'{"s":1,"t":0.1,"k":"?"}',
    b'{"k":"e"}',
    b"17",
    b"null",
    b"\xff\xfe",
    HEADER.strip().replace(b'"j"', b'"another"'),
)


def test_a_line_that_is_no_record_is_counted_and_stepped_over() -> None:
    for line in NO_RECORDS:
        chunk = parse_chunk(HEADER + metric(0) + line + b"\n" + metric(1), offset=0)

        assert [record.step for record in chunk.records if isinstance(record, Metrics)] == [0, 1], line[:80]
        assert chunk.bad_lines == 1, line[:80]


def summed(line: bytes) -> bytes:
    return line[:-2] + f',"c":{crc32(line[:-2])}}}\n'.encode()


def test_a_line_whose_sum_is_wrong_is_bad_and_a_line_without_one_is_believed() -> None:
    whole = HEADER + summed(metric(0)) + metric(1) + summed(metric(2)).replace(b"0.5", b"0.7")
    chunk = parse_chunk(summed(HEADER) + whole, offset=0)

    assert [record.step for record in chunk.records if isinstance(record, Metrics)] == [0, 1]
    assert chunk.bad_lines == 1


def test_no_flipped_bit_makes_another_value() -> None:
    line = summed(metric(7, "0.123456789"))
    for at, bit in product(range(len(line)), range(8)):
        flipped = line[:at] + bytes([line[at] ^ 1 << bit]) + line[at + 1 :]
        for record in parse_chunk(HEADER + flipped, offset=0).records:
            assert isinstance(record, Metrics), (at, bit)
            assert (record.step, record.values) == (7, {"loss": 0.123456789}), (at, bit)


def test_a_header_that_is_repeated_stands_in_for_one_that_was_damaged() -> None:
    whole = parse_chunk(HEADER + metric(0) + HEADER + metric(1), offset=0)
    damaged = parse_chunk(b"\0" * 50 + HEADER[50:] + metric(0) + HEADER + metric(1), offset=0)
    later = parse_chunk(HEADER + metric(1), offset=100, journal="j")

    assert (whole.bad_lines, damaged.bad_lines, later.bad_lines) == (0, 1, 0)
    assert whole.header == damaged.header
    assert whole.records == damaged.records
    assert later.header is None


def test_a_journal_cut_at_any_byte_gives_its_complete_lines() -> None:
    whole = HEADER + metric(0) + metric(1, '"nan"') + metric(2, '"-inf"')
    for length in range(len(whole) + 1):
        chunk = parse_chunk(whole[:length], offset=0)
        assert chunk.bad_lines == 0
        assert chunk.end == whole.rfind(b"\n", 0, length) + 1
        assert len(chunk.records) == max(0, whole[:length].count(b"\n") - 1)


def test_reading_on_from_an_offset_gives_the_rest(tmp_path: Path) -> None:
    whole = HEADER + metric(0) + metric(1)
    first = parse_chunk(whole[: len(HEADER) + 5], offset=0)
    second = parse_chunk(whole[first.end :], offset=first.end)

    (tmp_path / "j").write_bytes(whole)
    assert second.records == read_journal(tmp_path / "j").records
    assert (first.header is None, second.header is None) == (False, True)


def test_a_header_of_another_format_is_no_header() -> None:
    chunk = parse_chunk(HEADER.replace(b'"hpcml":1', b'"hpcml":2') + metric(0), offset=0)

    assert chunk.header is None
    assert chunk.bad_lines == 1


@pytest.mark.parametrize("limit", [1, 100, 8 << 20])
def test_a_line_of_64_mebibytes_ends_a_journal_however_it_is_read(tmp_path: Path, limit: int) -> None:
    path = tmp_path / "0-node7-1-rank0.jsonl"
    path.write_bytes(b"{}\n" + b"x" * (70 << 20) + b"\n{}\n")

    whole, too_long = read_piece(path, 0, limit), read_piece(path, 3, limit)

    assert whole.startswith(b"{}\n")
    assert too_long == b""
    assert "its last 73 MB hold no line" in str(unread(path, 3))


def test_a_journal_that_has_grown_is_read_again_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "0-h-rank0.jsonl"
    path.write_bytes(HEADER + metric(0) + metric(1)[:9])
    torn = read_journal(path)
    path.write_bytes(HEADER + metric(0) + metric(1))

    whole = read_on(path, torn)

    assert [len(torn.records), len(whole.records)] == [1, 2]
    assert read_on(path, whole) is whole
    assert read_on(path, None) == whole
    path.unlink()
    with pytest.raises(HpcmlError, match="cannot be read"):
        read_on(path, whole)
