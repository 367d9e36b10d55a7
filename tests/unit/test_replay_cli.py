"""replay: real recordings through the real command."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.batch import Batch, make
from agent.store.frames import Encoder, Head
from tests.commands import tickscope
from tests.unit.correlate_scenarios import MS, T0, Host, S, broker_slow, clock_step

HEAD = Head("0f0f0f0f-0000-4000-8000-000000000001", "host-a", "0", T0, 0)


def record(path: Path, host: Host, until: int = 60, end: bool = True) -> Path:
    """A recording as the agent writes it: what came in each 100 ms, then the watermark."""
    encoder = Encoder()
    with path.open("wb") as out:
        out.write(Encoder.head(HEAD))
        for tick in range(until * 10):
            lo, hi = T0 + tick * 100 * MS, T0 + (tick + 1) * 100 * MS
            batches = [Batch(t, rows) for t, r in host.made if len(rows := r[(r["t_ns"] >= lo) & (r["t_ns"] < hi)])]
            pieces, known = encoder.batches(batches)
            out.write(b"".join(pieces) + Encoder.tick(hi - 300 * MS))
            encoder.keep(known)
        out.write(Encoder.end() if end else b"")
    return path


@pytest.mark.parametrize("fmt", ["table", "json"])
def test_the_same_recording_gives_the_same_bytes(tmp_path: Path, fmt: str) -> None:
    file = record(tmp_path / "a.rec", broker_slow())
    first, second = (tickscope("replay", file, "-o", fmt) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout == second.stdout and b"broker_slow" in first.stdout


def test_json_is_one_document_with_the_evidence_as_values(tmp_path: Path) -> None:
    doc = json.loads(tickscope("replay", record(tmp_path / "a.rec", broker_slow()), "-o", "json").stdout)
    assert doc["schema"] == 1
    (row,) = doc["rows"]
    assert (row["cause"], row["state"], row["boot_id"]) == ("broker_slow", "closed", HEAD.boot_id)
    assert row["causes"][0]["cause"] == "broker_slow" and row["evidence"] and row["ruled_out"]


def test_sentences_have_the_recordings_own_wall_time(tmp_path: Path) -> None:
    host = broker_slow()
    host.made.append(
        make("clock_offset", 1, t_ns=T0 + S, real_mono_ns=1_700_000_000 * S - T0, boot_mono_ns=0, err_ns=50)
    )
    file = record(tmp_path / "a.rec", host)
    for fmt in ("table", "json"):
        out = tickscope("replay", file, "-o", fmt).stdout.decode()
        assert (
            re.search(r"from 2023-11-14T22:13:\d\d\.\d{3}Z to 2023-11-14T22:13:\d\d\.\d{3}Z because", out)
            and "from boot+" not in out
        )
    assert "from boot+" in tickscope("replay", file, "--without", "clock_offset").stdout.decode()


def test_without_its_clock_changes_there_is_no_clock_finding(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole.rec", clock_step())
    cut = record(tmp_path / "cut.rec", clock_step().without("clock_change"))
    causes = {
        f: [r["cause"] for r in json.loads(tickscope("replay", *f, "-o", "json").stdout)["rows"]]
        for f in ((whole,), (cut,), (whole, "--without", "clock_change"))
    }
    assert causes[whole,] == ["clock_step"]
    assert causes[cut,] == causes[whole, "--without", "clock_change"] == ["unknown"]


def test_nothing_wrong_is_exit_3_and_reports_it(tmp_path: Path) -> None:
    done = tickscope("replay", record(tmp_path / "a.rec", Host().healthy(0, 40), 40))
    assert (done.returncode, done.stdout) == (3, b"") and b"no findings" in done.stderr


@pytest.mark.parametrize("spoil", ["damaged", "foreign", "missing", "head only", "empty"])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, spoil: str) -> None:
    file = record(tmp_path / "a.rec", Host().healthy(0, 3), 3)
    whole = file.read_bytes()
    if spoil == "missing":
        file.unlink()
    else:
        file.write_bytes(
            {
                "damaged": whole[:-300] + bytes(255 - byte for byte in whole[-300:-291]) + whole[-291:],
                "foreign": b"PK\x03\x04" + bytes(1000),
                "head only": whole[:30],
                "empty": b"",
            }[spoil]
        )
    done = tickscope("replay", file)
    assert done.returncode == 1 and b"a.rec" in done.stderr and b"Traceback" not in done.stderr and not done.stdout


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "packed"])
def test_a_recording_that_is_cut_off_gives_the_findings_up_to_there(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    file = record(tmp_path / "a.rec", broker_slow())
    data = pack(file.read_bytes())
    for size, causes in (
        (len(data) - 1, ["broker_slow"]),
        (int(len(data) * 0.9), ["broker_slow"]),
        (int(len(data) * 0.3), []),
    ):
        file.write_bytes(data[:size])
        done = tickscope("replay", file, "-o", "json")
        assert done.returncode == (0 if causes else 3), done.stderr
        assert [r["cause"] for r in json.loads(done.stdout or '{"rows": []}')["rows"]] == causes
        assert b"cut off" in done.stderr


def test_wall_times_come_from_the_recordings_own_offset_history(tmp_path: Path) -> None:
    host = broker_slow()
    host.add("clock_offset", t_ns=T0, real_mono_ns=1_700_000_000 * S, boot_mono_ns=0, mono_raw_ns=0, err_ns=40)
    (row,) = json.loads(tickscope("replay", record(tmp_path / "a.rec", host), "-o", "json").stdout)["rows"]
    assert (row["wall_ns"], row["wall_err_ns"], row["wall_state"]) == (row["t_ns"] + 1_700_000_000 * S, 40, "exact")


def test_an_unknown_table_is_a_usage_error(tmp_path: Path) -> None:
    done = tickscope("replay", record(tmp_path / "a.rec", Host(), 1), "--without", "clock_chang")
    assert done.returncode == 2 and b"clock_change" in done.stderr


def test_times_are_those_of_the_recording(tmp_path: Path) -> None:
    doc = json.loads(tickscope("replay", record(tmp_path / "a.rec", broker_slow()), "-o", "json").stdout)
    assert T0 + 30 * S <= doc["rows"][0]["start_ns"] <= doc["rows"][0]["end_ns"] <= T0 + 33 * S
