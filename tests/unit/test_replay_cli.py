"""replay: real recordings through the real command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.batch import Batch
from agent.store.frames import Encoder, Head
from tests.unit.correlate_scenarios import MS, T0, Host, S, broker_slow, clock_step

ROOT = Path(__file__).resolve().parents[2]
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


def tickscope(*args: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([sys.executable, "-c", "from agent.cli.main import main; main()", *map(str, args)], cwd=ROOT, capture_output=True, check=False)


@pytest.mark.parametrize("fmt", ["table", "json", "ndjson", "csv"])
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


def test_without_its_clock_changes_there_is_no_clock_finding(tmp_path: Path) -> None:
    whole = record(tmp_path / "whole.rec", clock_step())
    cut = record(tmp_path / "cut.rec", clock_step().without("clock_change"))
    causes = {f: [r["cause"] for r in json.loads(tickscope("replay", *f, "-o", "json").stdout)["rows"]]
              for f in ((whole,), (cut,), (whole, "--without", "clock_change"))}
    assert causes[whole,] == ["clock_step"]
    assert causes[cut,] == causes[whole, "--without", "clock_change"] == ["unknown"]


def test_nothing_wrong_is_exit_3_and_says_so(tmp_path: Path) -> None:
    done = tickscope("replay", record(tmp_path / "a.rec", Host().healthy(0, 40), 40))
    assert (done.returncode, done.stdout) == (3, b"") and b"nothing wrong" in done.stderr


@pytest.mark.parametrize("spoil", ["cut", "foreign", "missing", "no end"])
def test_a_file_that_is_no_whole_recording_is_refused(tmp_path: Path, spoil: str) -> None:
    file = record(tmp_path / "a.rec", Host().healthy(0, 3), 3, end=spoil != "no end")
    if spoil == "cut":
        file.write_bytes(file.read_bytes()[:-9])
    elif spoil == "foreign":
        file.write_bytes(b"PK\x03\x04" + bytes(1000))
    elif spoil == "missing":
        file.unlink()
    done = tickscope("replay", file)
    assert done.returncode == 1 and b"a.rec" in done.stderr and b"Traceback" not in done.stderr and not done.stdout


def test_an_unknown_table_is_a_usage_error(tmp_path: Path) -> None:
    done = tickscope("replay", record(tmp_path / "a.rec", Host(), 1), "--without", "clock_chang")
    assert done.returncode == 2 and b"clock_change" in done.stderr


def test_times_are_those_of_the_recording(tmp_path: Path) -> None:
    doc = json.loads(tickscope("replay", record(tmp_path / "a.rec", broker_slow()), "-o", "json").stdout)
    assert T0 + 30 * S <= doc["rows"][0]["start_ns"] <= doc["rows"][0]["end_ns"] <= T0 + 33 * S
