"""The recording format: round trips, torn tails at every byte, other versions, other schemas."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Batch, make
from agent.errors import AgentError
from agent.store import frames
from agent.store.frames import Encoder, FrameDecoder, FrameKind, Head
from agent.store.recording import Recording
from agent.tables import TABLES

HEAD = Head("b" * 36, "host-a", "0.1", 17, 19)


def encode(*batches: Batch, tick: int | None = None, end: bool = True) -> list[bytes]:
    """The pieces of a file: head, one piece a frame."""
    encoder = Encoder()
    pieces, _ = encoder.batches(batches)
    ticks = [] if tick is None else [Encoder.tick(tick)]
    framed = [b"".join(halves) for halves in zip(pieces[::2], pieces[1::2], strict=True)]
    return [Encoder.head(HEAD), *framed, *ticks, *([Encoder.end()] if end else [])]


def random_rows(table: str, n: int, seed: int) -> np.ndarray:
    random = np.random.default_rng(seed)
    return np.frombuffer(random.bytes(n * TABLES[table].dtype.itemsize), TABLES[table].dtype)


@pytest.mark.parametrize("table", TABLES)
def test_every_table_survives_bit_for_bit(table: str) -> None:
    rows = random_rows(table, 23, 1)
    got = list(frames.read(b"".join(encode(Batch(table, rows), tick=31))))
    assert [f.kind for f in got] == [FrameKind.ROWS, FrameKind.TICK, FrameKind.END]
    assert got[0].table == table
    assert got[0].rows.tobytes() == rows.tobytes()
    assert got[1].t_ns == 31


def test_a_torn_tail_loses_only_the_torn_frame_at_every_byte() -> None:
    pieces = encode(make("loss", 3, t_ns=1), make("tcp_reset", 2, t_ns=2), make("loss", 1, t_ns=3), tick=5)
    ends = np.cumsum([len(p) for p in pieces])
    whole = b"".join(pieces)
    reported = [0, 0, 3, 0, 2, 1, 0, 0]  # rows in each piece: head, schema, rows, schema, rows, rows, tick, end
    assert len(reported) == len(pieces)
    for cut in range(len(whole) + 1):
        decoder = FrameDecoder()
        rows = sum(len(f.rows) for f in decoder.feed(whole[:cut]) if f.kind == FrameKind.ROWS)
        complete = int(np.searchsorted(ends, cut, "right"))
        assert rows == sum(reported[:complete]), cut
        assert decoder.offset == (ends[complete - 1] if complete else 0)
        assert decoder.pending == cut - decoder.offset
        assert decoder.corrupt is None
        assert decoder.ended == (cut == len(whole))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 400), max_size=30), st.integers(0, 2**32))
def test_pieces_of_any_size_decode_alike(sizes: list[int], seed: int) -> None:
    data = b"".join(encode(Batch("loss", random_rows("loss", 11, seed)), tick=5))
    decoder, at, rows = FrameDecoder(), 0, []
    for size in [*sizes, len(data)]:
        rows += [f.rows.tobytes() for f in decoder.feed(data[at : at + size]) if f.kind == FrameKind.ROWS]
        at += size
    assert decoder.ended
    assert rows == [random_rows("loss", 11, seed).tobytes()]


def test_a_flipped_bit_anywhere_is_noticed() -> None:
    pieces = encode(make("loss", 2, t_ns=1), end=True)
    data = b"".join(pieces)
    for at in range(len(data)):
        decoder = FrameDecoder()
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        list(decoder.feed(damaged))
        assert decoder.corrupt is not None or not decoder.ended, at


def test_a_tail_that_was_cut_off_and_rewritten_is_read_again() -> None:
    first, second = (
        encode(make("loss", 1, t_ns=1), end=False),
        encode(make("loss", 1, t_ns=1), make("loss", 4, t_ns=2), end=False),
    )
    decoder = FrameDecoder()
    list(decoder.feed(b"".join(first) + b"\x02\x00half a frame"))
    decoder.rewind()
    got = list(decoder.feed(b"".join(second)[decoder.offset :]))
    assert [len(f.rows) for f in got] == [4]


def schema_frame(doc: Mapping[str, object], ref: int = 0) -> bytes:
    return _frame(FrameKind.SCHEMA, ref, 0, json.dumps(doc).encode())


def _frame(kind: int, ref: int, rows: int, payload: bytes) -> bytes:
    header = struct.pack("<BBHII", kind, 0, ref, rows, len(payload))
    return header + struct.pack("<I", zlib.crc32(payload, zlib.crc32(header))) + payload


def column(name: str, kind: str, names: tuple[str, ...] = ()) -> dict[str, object]:
    return {"name": name, "kind": kind, "unit": "", "names": names}


def test_another_schema_is_mapped_by_name() -> None:
    dtype = np.dtype([("gone", "<i8"), ("result", "i1"), ("t_ns", "<i8"), ("errno", "S4")])
    stored = np.array([(7, 0, 11, b"x"), (7, 1, 12, b"y"), (7, -1, 13, b"z"), (7, 2, 14, b"")], dtype)
    doc = {
        "table": "tcp_connect",
        "dtype": dtype.descr,
        "columns": [
            column("gone", "i64"),
            column("result", "enum", ("exploded", "failed", "ok")),
            column("t_ns", "i64"),
            column("errno", "str"),
        ],
    }
    data = Encoder.head(HEAD) + schema_frame(doc) + _frame(FrameKind.ROWS, 0, 4, stored.tobytes())
    rows = next(frames.read(data)).rows
    code = TABLES["tcp_connect"].code
    assert rows.dtype == TABLES["tcp_connect"].dtype
    assert rows["t_ns"].tolist() == [11, 12, 13, 14]
    assert rows["result"].tolist() == [-1, code("result", "failed"), -1, code("result", "ok")]
    missing = TABLES["tcp_connect"].empty(1)
    assert rows["errno"].tolist() == [missing["errno"][0]] * 4  # same name, other kind: unknown
    assert rows["duration_ns"].tolist() == [missing["duration_ns"][0]] * 4


def test_an_unknown_table_is_ignored_and_the_rest_read() -> None:
    dtype = np.dtype([("t_ns", "<i8")])
    doc = {"table": "from_the_future", "dtype": dtype.descr, "columns": [column("t_ns", "i64")]}
    data = Encoder.head(HEAD) + schema_frame(doc, 9) + _frame(FrameKind.ROWS, 9, 1, b"\0" * 8) + Encoder.tick(3)
    assert [f.kind for f in frames.read(data)] == [FrameKind.TICK]


@pytest.mark.parametrize("types", ["|O", "<U4", "<m8[s]"])
def test_a_hostile_column_type_is_refused(types: str) -> None:
    decoder = FrameDecoder()
    list(decoder.feed(Encoder.head(HEAD) + schema_frame({"table": "loss", "dtype": [["t_ns", types]], "columns": []})))
    assert decoder.corrupt is not None


def packed(data: bytes) -> bytes:
    return gzip.compress(data)


PACKED = pytest.mark.parametrize("pack", [bytes, packed], ids=["plain", "packed"])


def whole(tmp_path: Path, pack: Callable[[bytes], bytes]) -> tuple[Path, bytes]:
    path = tmp_path / "r"
    data = b"".join(encode(make("loss", 5, t_ns=3), tick=4))
    path.write_bytes(pack(data))
    return path, data


@PACKED
def test_a_whole_recording_is_read(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    recording = Recording(whole(tmp_path, pack)[0])
    assert recording.head == HEAD
    assert [(kind, table) for kind, table, _ in recording] == [
        (FrameKind.ROWS, "loss"),
        (FrameKind.TICK, ""),
        (FrameKind.END, ""),
    ]
    assert recording.cut == ""


def refusal(path: Path) -> str:
    with pytest.raises(AgentError) as caught:
        list(Recording(path))
    return str(caught.value)


@PACKED
def test_recordings_that_are_refused_report_why(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    path, data = whole(tmp_path, pack)
    for bad, why in (
        (data + b"\x03", "1 bytes follow its end"),
        (b"PAR1 something else entirely", "not a tickscope file"),
        (data[:8] + struct.pack("<I", 7) + data[12:], "version 7, this tickscope reads version 1"),
        (data[:-70] + b"\xff" + data[-69:], "checksum"),
        (data[:11], "within its head"),
    ):
        path.write_bytes(pack(bad))
        assert why in refusal(path)
    path.write_bytes(b"")
    assert "within its head" in refusal(path)
    path.unlink()
    assert "cannot read" in refusal(path)


def test_what_follows_or_damages_the_packed_stream_is_noticed(tmp_path: Path) -> None:
    path, data = whole(tmp_path, packed)
    stream = packed(data)
    path.write_bytes(stream + b"x")
    assert "1 bytes follow its end" in refusal(path)
    path.write_bytes(stream[:40] + bytes(b ^ 0xFF for b in stream[40:60]) + stream[60:])
    assert "damaged" in refusal(path) or "checksum" in refusal(path) or "no frame" in refusal(path)


@PACKED
@pytest.mark.parametrize("missing", [1, frames.HEADER_BYTES - 1, frames.HEADER_BYTES])
def test_a_recording_that_is_cut_off_is_read_as_far_as_it_goes(
    tmp_path: Path, pack: Callable[[bytes], bytes], missing: int
) -> None:
    path, data = whole(tmp_path, pack)
    path.write_bytes(pack(data[:-missing]))
    recording = Recording(path)
    assert [f.kind for f in recording] == [FrameKind.ROWS, FrameKind.TICK]
    assert f"byte {len(data) - frames.HEADER_BYTES}" in recording.cut
    assert ("torn" in recording.cut) == (missing != frames.HEADER_BYTES)


def test_a_packed_recording_gives_a_prefix_wherever_it_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "r"
    data = b"".join(encode(make("loss", 500, t_ns=np.arange(500)), tick=4))
    stream = packed(data)
    wanted = [FrameKind.ROWS, FrameKind.TICK, FrameKind.END]
    found = []
    for end in range(len(stream) // 2, len(stream)):
        path.write_bytes(stream[:end])
        found.append([f.kind for f in Recording(path)])
    assert all(kinds == wanted[: len(kinds)] for kinds in found) and found[0] == [] and found[-1] == wanted
