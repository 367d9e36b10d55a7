"""Queries: hot and sealed rows answer alike, windows, groups, gaps, and every verb's formats and exit statuses."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.ask.names import columns
from agent.ask.question import Question
from agent.ask.window import Bound, parse
from agent.batch import Batch, make
from agent.cli import cells
from agent.columns import Column
from agent.common.clocks import boot_ns
from agent.common.host import boot_id as this_boot
from agent.errors import AgentError
from agent.store import frames, group, segments
from agent.store.hot import HotStore
from agent.store.query import Session
from agent.store.recorded import Recorded
from agent.store.recording import Recording
from agent.store.retention import Retention
from agent.store.seal import seal_all
from agent.tables import TABLES
from tests.commands import on_terminal, tickscope_text

ROOT = Path(__file__).resolve().parents[2]
V4 = b"\0" * 10 + b"\xff\xff" + bytes([10, 0, 0, 7])
V6 = bytes.fromhex("20010db8000000000000000000000001")


def write(path: Path, *batches: Batch, boot: str | None = None, seal: bool = False) -> None:
    """One more closed segment with these rows, sealed if asked."""
    store = HotStore(path, boot or this_boot(), "host-a", seal_command=())
    store.append(batches)
    store.close()
    if seal:
        with contextlib.chdir(path):
            assert seal_all(99_999_999, Retention(max_bytes=1 << 30, max_age_s=1e9)) == []


def verb(path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return tickscope_text(*argv, TICKSCOPE_STORE=str(path), TZ="UTC")


def ask(path: Path, *argv: str) -> dict[str, Any]:
    done = verb(path, *argv, "-o", "json")
    assert done.returncode in (0, 3), done.stderr
    doc = json.loads(done.stdout)
    assert doc["schema"] == 1
    assert done.returncode == (0 if doc["rows"] else 3)
    return dict(doc)


def values(column: Column, random: np.random.Generator, n: int) -> np.ndarray:
    """n stored values of a column's kind: any bytes for texts, IPv4 and IPv6, and about a quarter unknown."""
    if column.kind == "hist":
        return random.integers(0, 2**32, (n, 64), np.uint32)
    if column.kind in ("addr", "peer"):
        found = [random.choice([V4, V6, b"\0" * 16]) for _ in range(n)]
        port = b"\x50\x00" if column.kind == "peer" else b""
        return np.array([f.ljust(16, b"\0") + port if any(f) else b"" for f in found], column.dtype)
    if column.kind in ("str", "json"):
        return np.array([random.bytes(int(random.integers(0, column.width + 1))) for _ in range(n)], column.dtype)
    if column.kind == "f64":
        return random.choice([np.nan, -1.5, 0.0, 1e300], n)
    top = {"bool": 2, "enum": max(1, len(column.names))}.get(column.kind, 2**62)
    found_numbers = random.integers(0, top, n).astype(column.dtype)
    found_numbers[random.random(n) < 0.25] = column.null
    return found_numbers


@pytest.mark.parametrize("table", TABLES)
def test_hot_and_sealed_rows_answer_alike(tmp_path: Path, table: str) -> None:
    random = np.random.default_rng(7)
    rows = TABLES[table].empty(101)
    for c in TABLES[table].columns:
        rows[c.name] = values(c, random, 101)
    rows["t_ns"] = np.arange(101) * 10**9
    if by := TABLES[table].latest_by:
        rows[by] = [b"%d" % i for i in range(101)]
    if as_of := TABLES[table].as_of:
        rows[as_of] = rows["t_ns"]
    clock = make(
        "clock_offset",
        2,
        t_ns=[10 * 10**9, 50 * 10**9],
        real_mono_ns=[10**18, 10**18 - 3 * 10**9],
        boot_mono_ns=0,
        err_ns=7,
        cut=[0, 1],
    )
    given = [Batch(table, rows)] if table == "clock_offset" else [Batch(table, rows), clock]
    answers = []
    for sealed in (False, True):
        write(tmp_path / str(sealed), *given, seal=sealed)
        with Session(tmp_path / str(sealed), [table]) as session:
            answers.append(session.run(f"SELECT * FROM {table} ORDER BY t_ns"))
            assert session.run(f"SELECT typeof(COLUMNS(*)) FROM {table} LIMIT 1").rows
    assert answers[0].columns == columns(table)
    assert len(answers[0].rows) == 101
    assert repr(answers[0]) == repr(answers[1])


def test_stored_values_become_readable_ones_and_unknown_becomes_null(tmp_path: Path) -> None:
    peer = np.array([V4 + (6379).to_bytes(2, "little"), V6 + (443).to_bytes(2, "little"), b""], "V18")
    write(
        tmp_path,
        make(
            "tcp_connect",
            2,
            t_ns=[1, 2],
            daddr=np.array([V4, V6], "V16"),
            peer=peer[:2],
            comm=[b"caf\xc3\xa9", b"\xff"],
            result=[0, 2],
            errno=[0, 111],
            family=[0, 1],
        ),
        make("tcp_connect", 1, t_ns=3),
        make("limiter_decision", 3, t_ns=[1, 2, 3], step_immune=[0, 1, -1], cost=[0.0, 2.5, np.nan]),
    )
    rows = ask(
        tmp_path, "query", "tcp_connect", "--columns", "daddr,peer,comm,result,errno,family,pid,wall_ns,wall_state"
    )["rows"]
    assert [list(r.values()) for r in rows] == [
        ["10.0.0.7", "10.0.0.7:6379", "café", "ok", 0, "ipv4", None, None, None],
        ["2001:db8::1", "[2001:db8::1]:443", "\ufffd", "aborted", 111, "ipv6", None, None, None],
        [None] * 9,
    ]
    rows = ask(tmp_path, "query", "limiter_decision", "--columns", "step_immune,cost")["rows"]
    assert [list(r.values()) for r in rows] == [[False, 0.0], [True, 2.5], [None, None]]


def test_wall_time_follows_the_history_of_each_boot(tmp_path: Path) -> None:
    second = 10**9
    for sealed, boot, base in ((True, "boot-one", 10**18), (False, "boot-two", 2 * 10**18)):
        clock = make(
            "clock_offset",
            2,
            t_ns=[10 * second, 50 * second],
            real_mono_ns=[base, base - 5 * second],
            boot_mono_ns=0,
            err_ns=11,
            cut=[0, 1],
        )
        write(
            tmp_path, clock, make("tcp_reset", 3, t_ns=[20 * second, 47 * second, 52 * second]), boot=boot, seal=sealed
        )
    rows = ask(tmp_path, "query", "tcp_reset", "--columns", "boot_id,wall_ns,wall_err_ns,wall_state,wall_alt_ns")[
        "rows"
    ]
    expected = []
    for boot, base in (("boot-one", 10**18), ("boot-two", 2 * 10**18)):
        expected += [
            [boot, base + 20 * second, 11, "exact", None],
            [boot, base + 47 * second, 11, "ambiguous", base + 42 * second],
            [boot, base + 47 * second, 11, "ambiguous", base + 52 * second],
        ]
    assert [list(r.values()) for r in rows] == expected


def test_windows_are_relative_dated_and_since_boot(tmp_path: Path) -> None:
    now = boot_ns()
    offset = time.time_ns() - now
    ages = [5, 60, 300, 700]  # a machine may be up for a quarter of an hour only
    times = [now - age * 10**9 for age in ages]
    clock = make("clock_offset", 1, t_ns=times[-1], real_mono_ns=offset, boot_mono_ns=0, err_ns=1)
    write(tmp_path, clock, make("tcp_reset", 4, t_ns=times, pid=ages), seal=True)
    earlier = make("clock_offset", 1, t_ns=1, real_mono_ns=time.time_ns() - 1800 * 10**9, boot_mono_ns=0, err_ns=1)
    write(tmp_path, earlier, make("tcp_reset", 1, t_ns=1, pid=1800), boot="earlier-boot")

    def pids(*argv: str) -> set[int]:
        return {r["pid"] for r in ask(tmp_path, "query", "tcp_reset", *argv)["rows"]}

    assert pids() == {5, 60, 300, 700, 1800}
    assert pids("--since", "30s") == {5}
    assert pids("--since", "2m") == {5, 60}
    assert pids("--since", "1h") == {5, 60, 300, 700, 1800}
    assert pids("--since", "1d", "--until", "10m") == {700, 1800}
    assert pids("--until", "30s", "--since", "10m") == {60, 300}
    assert pids("--since", f"boot+{(now - 100 * 10**9) / 1e9}") == {5, 60}
    iso = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(time.time() - 500))
    assert pids("--since", iso) == {5, 60, 300}
    assert pids("--since", iso + "Z") == {5, 60, 300}
    assert pids("--until", iso + "+00:00") == {700, 1800}
    bad = verb(tmp_path, "query", "tcp_reset", "--since", "the day before")
    assert (bad.returncode, "boot+SECONDS" in bad.stderr) == (2, True)
    for since, until in (("1m", "2m"), ("boot+2", "boot+1"), ("2026-11-20 10:00", "2026-11-20 09:00"), ("", "1m")):
        assert verb(tmp_path, "query", "tcp_reset", "--since", since, "--until", until).returncode == 2


def test_gaps_are_the_losses_that_overlap_the_window(tmp_path: Path) -> None:
    now = boot_ns()
    loss = make("loss", 4, t_ns=now, count=[1, 2, 0, 3], source=["old", "recent", "nothing", "open"])
    loss.rows["from_ns"] = [now - 300 * 10**9, now - 100 * 10**9, now - 10**9, TABLES["loss"].by_name["from_ns"].null]
    loss.rows["to_ns"] = [now - 200 * 10**9, now - 30 * 10**9, now, TABLES["loss"].by_name["to_ns"].null]
    write(tmp_path, loss, make("tcp_reset", 1, t_ns=now - 10**9))
    assert [g["source"] for g in ask(tmp_path, "query", "tcp_reset", "--since", "1m")["gaps"]] == ["recent", "open"]
    assert [g["source"] for g in ask(tmp_path, "query", "tcp_reset", "--since", "1h", "--until", "150s")["gaps"]] == [
        "old"
    ]
    assert "gap: 2 records lost" in verb(tmp_path, "query", "tcp_reset", "--since", "1m").stderr


def test_groups_of_plain_rows_give_the_value_of_each_rank(tmp_path: Path) -> None:
    write(
        tmp_path,
        make("tcp_connect", 100, t_ns=1, duration_ns=np.arange(1, 101), comm=b"a"),
        make("tcp_connect", 3, t_ns=1, duration_ns=7000, comm=b"b"),
    )
    rows = ask(tmp_path, "query", "tcp_connect", "--group-by", "comm,host")["rows"]
    assert rows == [
        {"comm": "a", "host": "host-a", "count": 100, "p50": 50, "p90": 90, "p99": 99, "max": 100},
        {"comm": "b", "host": "host-a", "count": 3, "p50": 7000, "p90": 7000, "p99": 7000, "max": 7000},
    ]
    assert [r["comm"] for r in ask(tmp_path, "query", "tcp_connect", "--group-by", "comm", "--top", "1")["rows"]] == [
        "b"
    ]
    assert [r["comm"] for r in ask(tmp_path, "query", "tcp_connect", "--group-by", "comm", "--limit", "1")["rows"]] == [
        "a"
    ]


def test_groups_of_histograms_merge_them(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    samples = random.lognormal(7, 1, (40, 500)).astype(np.int64)
    hist = np.stack([np.bincount(np.frexp(s)[1] - 1, minlength=64)[:64] for s in samples]).astype(np.uint32)
    write(tmp_path, make("tcp_rtt", 40, t_ns=1, samples=500, rtt_max_us=samples.max(1), srtt_us=3, hist=hist))
    (row,) = ask(tmp_path, "query", "tcp_rtt", "--group-by", "peer")["rows"]
    assert (row["count"], row["max"]) == (20_000, samples.max())
    for name, q in group.QUANTILES.items():
        exact = np.quantile(samples, q)
        assert exact * 0.75 < row[name] < exact * 1.33  # Inside a bucket, [2^i, 2^(i+1)), and interpolated.


@pytest.mark.parametrize(
    ("bucket", "largest", "expected"),
    [(0, 1, [1, 1, 1]), (10, None, [1448, 1911, 2034]), (10, 1500, [1448, 1500, 1500]), (63, None, None)],
)
def test_percentiles_lie_inside_their_bucket(bucket: int, largest: int | None, expected: list[int] | None) -> None:
    buckets = np.zeros(64)
    buckets[bucket] = 9
    found = group.quantiles(buckets, largest)
    assert found == (expected or found)
    assert all(v is not None and v <= 2 ** (bucket + 1) for v in found)
    assert group.quantiles(np.zeros(64), 5) == [None, None, None]


def test_top_limit_where_and_columns(tmp_path: Path) -> None:
    write(
        tmp_path,
        make("tcp_connect", 50, t_ns=np.arange(50), duration_ns=(np.arange(50) * 17) % 50, comm=b"x"),
        seal=True,
    )
    write(tmp_path, make("tcp_connect", 1, t_ns=99))
    rows = ask(tmp_path, "query", "tcp_connect", "--top", "3", "--columns", "duration_ns")["rows"]
    assert rows == [{"duration_ns": 49}, {"duration_ns": 48}, {"duration_ns": 47}]
    rows = ask(tmp_path, "query", "tcp_connect", "--limit", "2", "--columns", "t_ns,comm")["rows"]
    assert rows == [{"t_ns": 49, "comm": "x"}, {"t_ns": 99, "comm": None}]
    assert (
        len(ask(tmp_path, "query", "tcp_connect", "--where", "duration_ns > 40 OR duration_ns IS NULL -- note")["rows"])
        == 10
    )
    rows = ask(tmp_path, "query", "clock_change")["rows"]
    assert rows == []


@pytest.mark.parametrize(
    ("argv", "status", "output"),
    [
        (["query", "tcp_rt"], 2, "did you mean tcp_rtt"),
        (["query", "tcp_rtt", "--columns", "pear"], 2, "did you mean peer"),
        (["query", "tcp_rtt", "--group-by", "pear"], 2, "did you mean peer"),
        (["query", "tcp_rtt", "--where", "pear = 'x'"], 2, "did you mean peer"),
        (["query", "tcp_rtt", "--where", "samples >"], 2, "bad SQL"),
        (["sql", "SELECT length(string_agg(repeat('x', 10000000), '')) FROM range(200)"], 1, "more than 1GB of memory"),
        (["sql", "SELECT 1760000000*1000000000"], 2, "write 1000000000::BIGINT"),
        (["query", "tcp_reset", "--top", "3"], 2, "no measure"),
        (["query", "tcp_rtt", "--top", "0"], 2, "top"),
        (["sql", "SELECT * FROM tcp_rt"], 2, "did you mean tcp_rtt"),
        (["sql", "SELECT * FROM read_text('/etc/passwd')"], 2, "disabled"),
        *(
            (["sql", text], 2, f"{text.split()[0].upper()} is refused: SQL is read-only")
            for text in (
                "SET enable_external_access = true",
                "drop view tcp_rtt",
                "create table x as select 1",
                "insert into tcp_rtt values (1)",
                "attach 'x'",
                "copy tcp_rtt to '/tmp/x'",
                "begin",
                "load httpfs",
            )
        ),
        (["sql", "SELECT 1; /* -- */ drop view tcp_rtt"], 2, "DROP is refused: SQL is read-only"),
        (["sql", "explain analyze drop view tcp_rtt"], 2, "DROP is refused: SQL is read-only"),
        (["query", "tcp_rtt", "--where", "true) ; drop view tcp_rtt --"], 2, "bad SQL"),
        (["query", "tcp_rtt"], 3, "no rows"),
        (["sql", "SELECT 1 WHERE false"], 3, "no rows"),
        (["tables", "tcp_rt"], 2, "did you mean tcp_rtt"),
        (["tail", "tcp_rt"], 2, "did you mean tcp_rtt"),
    ],
)
def test_what_cannot_be_answered_reports_why(tmp_path: Path, argv: list[str], status: int, output: str) -> None:
    write(tmp_path, make("tcp_reset", 1, t_ns=1))
    done = verb(tmp_path, *argv)
    assert (done.returncode, done.stdout.strip()) == (status, "")
    assert output in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "argv", [["query", "tcp_rtt"], ["sql", "SELECT 1"], ["tail", "tcp_rtt"], ["record", "-o", "x"]]
)
def test_a_store_that_is_not_there_is_status_4_with_a_remedy(tmp_path: Path, argv: list[str]) -> None:
    done = verb(tmp_path / "absent", *argv)
    assert done.returncode == 4
    assert "try:" in done.stderr


def test_formats_agree(tmp_path: Path) -> None:
    write(
        tmp_path,
        make(
            "finding",
            2,
            finding_id=[b"a", b"b"],
            t_ns=[1, 2],
            sentence_parts=[b'[{"cause":"tls"}]', b'[{"cut off'],
            sentence=b'a "quoted", one',
            confidence=0.5,
        ),
    )
    argv = ["query", "finding", "--columns", "t_ns,sentence,sentence_parts,confidence"]
    rows = ask(tmp_path, *argv)["rows"]
    assert [r["sentence_parts"] for r in rows] == [[{"cause": "tls"}], '[{"cut off']
    assert [json.loads(line) for line in verb(tmp_path, *argv, "-o", "ndjson").stdout.splitlines()] == rows
    lines = list(csv.DictReader(io.StringIO(verb(tmp_path, *argv, "-o", "csv").stdout)))
    assert [(line["t_ns"], line["sentence"], line["confidence"]) for line in lines] == [
        ("1", 'a "quoted", one', "0.5"),
        ("2", 'a "quoted", one', "0.5"),
    ]
    table = verb(tmp_path, *argv).stdout.splitlines()
    assert table[0].split() == ["t_ns", "sentence", "sentence_parts", "confidence"]
    assert "\x1b" not in table[0]


def test_every_table_and_column_is_listed(tmp_path: Path) -> None:
    assert [r["table"] for r in ask(tmp_path, "tables")["rows"]] == list(TABLES)
    for table in TABLES:
        with Session(_empty(tmp_path), [table]) as session:
            assert session.run(f"SELECT * FROM {table}").columns == columns(table)
    assert [r["column"] for r in ask(tmp_path, "tables", "loss")["rows"]] == columns("loss")


def _empty(path: Path) -> Path:
    place = path / "empty"
    place.mkdir(exist_ok=True)
    (place / segments.LOCK).touch()
    return place


def test_a_directory_that_no_agent_has_used_is_no_good_news(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    done = verb(tmp_path, "findings")
    assert (done.returncode, done.stdout) == (4, "")
    assert "no agent has written there yet" in done.stderr


@pytest.mark.parametrize(
    "name",
    sorted(
        {
            column.name
            for table in TABLES.values()
            for column in table.columns
            if column.unit == "ns" and "CLOCK_BOOTTIME" in column.meaning
        }
    ),
)
def test_a_time_since_boot_is_shown_as_one(name: str) -> None:
    assert cells.cell(name, 18_476_000_000_000) == "boot+18476.000000"


def test_a_store_without_an_agent_is_reported(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 1, t_ns=boot_ns() - 100 * 10**9, comm=b"x"))
    done = verb(tmp_path, "query", "tcp_reset")
    assert "no agent writes this store now; its newest row is 1m4" in done.stderr
    assert done.returncode == 0
    store = HotStore(tmp_path, this_boot(), "host-a", seal_command=())
    assert "no agent" not in verb(tmp_path, "query", "tcp_reset").stderr
    store.close()


def test_sql_joins_tables_of_hot_and_sealed_rows(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 5, t_ns=1, pid=[1, 2, 3, 4, 5]), seal=True)
    write(tmp_path, make("tcp_close", 3, t_ns=1, pid=[2, 3, 9]))
    doc = ask(tmp_path, "sql", "SELECT r.pid FROM TCP_RESET r JOIN tcp_close c USING (pid) ORDER BY 1;")
    assert doc["rows"] == [{"pid": 2}, {"pid": 3}]


def test_sql_gives_times_with_zones_and_refuses_what_is_no_statement(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 1, t_ns=1))
    assert (
        ask(
            tmp_path,
            "sql",
            "SELECT epoch(to_timestamp(7)) e, to_timestamp(7)::VARCHAR IS NOT NULL n, to_timestamp(7) t",
        )["rows"][0]["e"]
        == 7
    )
    for text in ("", " ;"):
        done = verb(tmp_path, "sql", text)
        assert (done.returncode, done.stderr.splitlines()[0]) == (2, "tickscope: bad SQL: there is no statement in it")


@pytest.mark.parametrize(
    "explain",
    ["EXPLAIN(analyze) ", "EXPLAIN/*x*/ ", "-- x\nexplain (format json, analyze)", "explain ", "explain analyze/**/"],
)
def test_a_query_is_explained_however_that_is_asked(tmp_path: Path, explain: str) -> None:
    write(tmp_path, make("tcp_reset", 1, t_ns=1))
    with Session(tmp_path, ["tcp_reset"]) as session:
        assert len(session.run(f"{explain}(select 1) union (select 2)").rows) == 1
        with pytest.raises(AgentError, match="DROP is refused"):
            session.run(f"{explain}drop view tcp_reset")


def test_a_condition_may_ask_another_table(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 5, t_ns=1, pid=[1, 2, 3, 4, 5]), make("tcp_close", 3, t_ns=1, pid=[2, 3, 9]))
    rows = ask(tmp_path, "query", "tcp_reset", "--where", "pid IN (SELECT pid FROM tcp_close)", "--columns", "pid")[
        "rows"
    ]
    assert sorted(r["pid"] for r in rows) == [2, 3]


def test_rows_are_found_by_their_pod_also_if_that_was_reported_before_the_window(tmp_path: Path) -> None:
    pods = make("container", 3, t_ns=[1, 2, 1], container_id=[b"a", b"a", b"b"], pod=[b"old", b"api", b"db"])
    write(tmp_path, pods, seal=True)
    write(tmp_path, make("tcp_reset", 3, t_ns=10**12, pid=[1, 2, 3], container_id=[b"a", b"b", b""]))
    condition = "container_id IN (SELECT container_id FROM container WHERE pod = 'api')"
    of_pod = ask(tmp_path, "query", "tcp_reset", "--since", "boot+900", "--where", condition, "--columns", "pid")
    assert of_pod["rows"] == [{"pid": 1}]
    joined = "SELECT pid, pod FROM tcp_reset LEFT JOIN container USING (boot_id, container_id) ORDER BY pid"
    assert [row["pod"] for row in ask(tmp_path, "sql", joined)["rows"]] == ["api", "db", None]


def test_a_reader_that_stops_early_is_no_error(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 20_000, t_ns=1))
    code = "from agent.cli.main import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TICKSCOPE_STORE": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, "query", "tcp_reset", "-o", "ndjson"],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.readline()
        done.stdout.close()
        reported = done.stderr.read()
        assert b"Broken" not in reported and b"Traceback" not in reported
    assert done.returncode == 0


def test_rows_come_in_order_of_time_a_span_after_the_other(tmp_path: Path) -> None:
    """Over boots, hot and sealed rows, seconds with more rows than a span takes, and whatever the limit cuts."""
    older, times = str(uuid.uuid4()), np.random.default_rng(1).permutation(9_000) * 10**7
    expected = []
    for boot, seal in ((older, True), (this_boot(), True), (this_boot(), False)):
        part = times if seal else np.full(3_000, 5 * 10**9)
        write(tmp_path, make("tcp_reset", len(part), t_ns=part, pid=part // 10**7), boot=boot, seal=seal)
        expected += [(boot != older, int(t)) for t in part]
    expected.sort()
    with Session(tmp_path, ["tcp_reset"]) as session:
        for limit in (None, 1, 3_000, 12_500, 50_000):
            question = Question("tcp_reset", ("boot_id", "t_ns"), limit=limit)
            batches = list(session.batches(question))
            rows = [(row["boot_id"] != older, row["t_ns"]) for batch in batches for row in batch]
            assert rows == expected[-limit if limit else 0 :]
            assert max(map(len, batches)) <= 2_000


def test_a_terminal_gets_the_newest_thousand_rows_and_the_way_to_all(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_reset", 1_234, t_ns=np.arange(1_234), pid=np.arange(1_234)))
    shown = {}
    for argv in ((), ("--limit", "0")):
        asked = ("query", "tcp_reset", "-o", "csv", "--columns", "pid", *argv, "--store", tmp_path)
        lines = on_terminal(*asked, errors=True).splitlines()
        shown[argv] = sum(line.isdigit() for line in lines), any("--limit 0" in line for line in lines)
    assert shown == {(): (1_000, True), ("--limit", "0"): (1_234, False)}
    assert len(verb(tmp_path, "query", "tcp_reset", "-o", "csv").stdout.splitlines()) == 1_235


def started(path: Path, *argv: str) -> subprocess.Popen[str]:
    code = "from agent.cli.main import main; main()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "TICKSCOPE_STORE": str(path)}
    return subprocess.Popen(
        [sys.executable, "-c", code, *argv], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_tail_follows_across_rotation_and_a_new_agent(tmp_path: Path) -> None:
    store = HotStore(tmp_path, this_boot(), "host-a")
    store.append(
        [
            make("tcp_reset", 1, t_ns=1, pid=1),
            make("clock_offset", 1, t_ns=1, real_mono_ns=10**18, boot_mono_ns=0, err_ns=3),
        ]
    )
    with started(tmp_path, "tail", "tcp_reset") as tail:
        assert tail.stdout is not None
        seen: list[int] = []
        pid = 1
        while not seen:  # It follows from when it has started: write until it reports.
            pid += 1
            store.append([make("tcp_reset", 1, t_ns=pid, pid=pid)])
            os.set_blocking(tail.stdout.fileno(), False)
            seen += [json.loads(line)["pid"] for line in tail.stdout]
            time.sleep(0.02)
        os.set_blocking(tail.stdout.fileno(), True)
        first = seen[0]
        store._rotate()
        store.append([make("tcp_reset", 1, t_ns=5, pid=pid + 1)])
        store.close()
        store = HotStore(tmp_path, this_boot(), "host-a")
        store.append([make("tcp_reset", 1, t_ns=6, pid=pid + 2)])
        while seen[-1] < pid + 2:
            row = json.loads(tail.stdout.readline())
            seen.append(row["pid"])
        assert seen == list(range(first, pid + 3))
        assert (row["wall_ns"], row["wall_state"]) == (10**18 + 6, "exact")
        assert list(row) == columns("tcp_reset")
        tail.send_signal(signal.SIGINT)
        assert tail.wait() == 130
    store.close()


def test_tail_as_csv_has_a_heading(tmp_path: Path) -> None:
    store = HotStore(tmp_path, this_boot(), "host-a")
    with started(tmp_path, "tail", "tcp_reset", "-o", "csv") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline().strip().split(",") == columns("tcp_reset")
        tail.send_signal(signal.SIGINT)
        assert tail.wait() == 130
    store.close()


def test_a_recording_holds_rows_and_ticks_in_order_and_ends_cleanly(tmp_path: Path) -> None:
    store = HotStore(tmp_path / "s", this_boot(), "host-a", seal_command=())
    store.append([make("tcp_reset", 1, t_ns=0)], tick_ns=0)
    path = tmp_path / "recording"
    with started(tmp_path / "s", "record", "-o", str(path)) as record:
        while not (path.exists() and path.stat().st_size):
            time.sleep(0.01)
        for n in range(1, 14):
            store.append([make("tcp_reset", 2, t_ns=n), make("tcp_close", 1, t_ns=n)], tick_ns=n)
            if n == 7:
                store._rotate()
        time.sleep(0.3)
        record.send_signal(signal.SIGINT)
        assert record.wait() == 130
    store.close()
    found = [
        (k.name, table, value if k != frames.FrameKind.ROWS else len(value)) for k, table, value in Recording(path)
    ]  # type: ignore[arg-type]
    expected: list[tuple[str, str, object]] = []
    for n in range(1, 14):
        expected += [("ROWS", "tcp_reset", 2), ("ROWS", "tcp_close", 1), ("TICK", "", n)]
    assert found == [*expected, ("END", "", None)]
    assert Recording(path).head.boot_id == this_boot()


def test_record_stops_after_its_duration(tmp_path: Path) -> None:
    store = HotStore(tmp_path / "s", this_boot(), "host-a", seal_command=())
    done = verb(tmp_path / "s", "record", "-o", str(tmp_path / "r"), "--duration", "0.3")
    store.close()
    assert done.returncode == 0, done.stderr
    assert [kind for kind, _, _ in Recording(tmp_path / "r")] == [frames.FrameKind.END]


def test_record_without_an_agent_reports_it(tmp_path: Path) -> None:
    tmp_path.joinpath("s").mkdir()
    done = verb(tmp_path / "s", "record", "-o", str(tmp_path / "r"), "--duration", "0.2")
    assert done.returncode == 4
    assert "no agent" in done.stderr


def test_a_session_refuses_a_bad_table_in_sql(tmp_path: Path) -> None:
    with Session(_empty(tmp_path), ["loss"]) as session, pytest.raises(AgentError, match="no table"):
        session.run("SELECT * FROM lost")


def test_a_terminal_gets_the_columns_that_fit_and_a_note(tmp_path: Path) -> None:
    write(tmp_path, make("tcp_connect", 3, t_ns=1, duration_ns=1_234_567, comm=b"x", result=0))
    shown = on_terminal("query", "tcp_connect", "--store", tmp_path, columns=60, errors=True, NO_COLOR="1")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert "1.23ms" in lines[1]
    assert "pid" not in lines[0].split()  # Unknown in all rows.
    assert "hidden" in shown


@pytest.mark.parametrize(
    ("text", "back_s"),
    [
        ("90s", 90),
        ("-1h", 3600),
        ("10 min ago", 600),
        ("1w", 604800),
        ("1h 30min", 5400),
        ("2 days", 172800),
        ("1.5h", 5400),
        ("now", 0),
        ("+1h", -3600),
        ("1 month ago", 2629800),
        ("1y 1M", 31557600 + 2629800),
    ],
)
def test_relative_times_are_those_of_journalctl(text: str, back_s: int) -> None:
    before = time.time_ns()
    bound = parse(text, [])
    assert bound.wall_ns is not None
    assert before <= bound.wall_ns + back_s * 10**9 <= time.time_ns()


@pytest.mark.parametrize(
    "text",
    [
        "22:13",
        "9:05",
        "22:13:04",
        "today",
        "yesterday",
        "2026-11-20 10:00",
        "2026-11-20",
        "Fri 2026-11-20 10:00:00 UTC",
        f"Fri 2026-11-20 10:00:00 {time.tzname[0]}",
    ],
)
def test_times_of_the_day_are_local_as_those_of_journalctl(text: str) -> None:
    """As date(1) reads them."""
    midnight = text if ":" in text else f"{text} 00:00" if "-" in text else f"{text} 0:00"
    reported = subprocess.run(["date", "+%s", "-d", midnight], check=True, capture_output=True, text=True).stdout
    assert parse(text, []) == Bound(None, 0, int(reported) * 10**9)


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-10 10:00 CET", "2026-01-10 09:00"),
        ("2026-07-10 10:00 CEST", "2026-07-10 08:00"),
        ("2026-10-25 02:30 CEST", "2026-10-25 00:30"),
        ("2026-10-25 02:30 CET", "2026-10-25 01:30"),
        ("2026-01-10 10:00 CEST", None),
        ("2026-03-29 02:30 CET", None),
        ("2026-03-29 02:30 CEST", None),
        ("2026-07-10 10:00 CET", None),
    ],
)
def test_a_local_zone_is_the_one_of_that_time(text: str, utc: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        try:
            if utc is None:
                with pytest.raises(AgentError, match="cannot read the time"):
                    parse(text, [])
            else:
                assert parse(text, []) == parse(f"{utc} UTC", [])
        finally:
            patch.undo()
            time.tzset()


@pytest.mark.parametrize("text", ["5 parsecs", "-1h ago", "", "10", "25:00", "1Q", "yesterdays", "1h 5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(AgentError, match="cannot read the time"):
        parse(text, [])


def test_a_past_time_is_recorded_from_the_store_row_by_row(tmp_path: Path) -> None:
    """Every kind of column, hot and sealed; the rows of the recording are those of the store."""
    random = np.random.default_rng(1)
    place, n = tmp_path / "store", 40
    for at, seal in enumerate((True, False)):
        batches = []
        for table in ("tcp_rtt", "queue_lag", "limiter_decision", "clock_offset"):
            rows = {c.name: b"text" if c.kind == "str" else values(c, random, n) for c in TABLES[table].columns}
            batches.append(make(table, n, **{**rows, "t_ns": np.arange(n) * 10**8 + at * 10**10}))
        write(place, *batches, seal=seal)
    path = tmp_path / "past"
    done = verb(place, "record", "-o", str(path), "--since", "boot+2", "--until", "boot+12")
    assert done.returncode == 0, done.stderr
    for table in ("tcp_rtt", "queue_lag", "limiter_decision"):
        names = [c.name for c in TABLES[table].columns]
        with Session(place, [table], "boot+2", "boot+12") as session, Recorded(path, [table]) as recorded:
            expected = session.rows(Question(table, tuple(names)))
            assert len(expected) == n
            assert recorded.rows(Question(table, tuple(names))) == expected
    assert verb(place, "replay", str(path)).returncode in (0, 3)
    ticks = [value for kind, _, value in Recording(path) if kind == frames.FrameKind.TICK]
    assert ticks == sorted(ticks) and len(ticks) >= 10
    for wrong in (["--until", "boot+1"], ["--since", "1h", "--duration", "3"]):
        assert verb(place, "record", "-o", str(tmp_path / "x"), *wrong).returncode == 2


@pytest.mark.parametrize("table", [name for name, table in TABLES.items() if table.measure])
def test_the_measure_is_the_last_column_that_a_narrow_screen_loses(table: str) -> None:
    names, measure = columns(table), TABLES[table].measure
    for room in (80, 40, 20):
        assert measure in cells.fit(names, dict.fromkeys(names, 17), room, measure)


@pytest.mark.parametrize(
    ("env", "escapes"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": ""}, False),
    ],
)
def test_only_a_terminal_that_knows_escape_sequences_gets_some(env: dict[str, str], escapes: bool) -> None:
    shown = on_terminal("tables", **{"NO_COLOR": "", **env})
    assert ("\x1b" in shown) == escapes


@pytest.mark.parametrize("ordered", [False, True])
def test_a_damaged_file_that_is_found_late(tmp_path: Path, ordered: bool) -> None:
    """Where rows are printed already the answer ends with exit 4; where all are read first the file is left out."""
    many = 20_000  # with a kilobyte each, more than DuckDB reads ahead (1 MB)
    for start, pid in ((1, 1), (10**6, 2)):
        write(tmp_path, make("tcp_reset", many, t_ns=start + np.arange(many), pid=pid), seal=True)
    file = sorted(tmp_path.glob("sealed-*"))[1] / "tcp_reset.parquet"
    data = bytearray(file.read_bytes())
    data[4:200] = bytes(196)  # the first pages; the end, which says what is where, stays whole
    file.write_bytes(data)
    text = "SELECT t_ns, pid, repeat('x', 1000) AS long FROM tcp_reset" + (" ORDER BY t_ns" if ordered else "")
    done = verb(tmp_path, "sql", text, "-o", "ndjson")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["pid"] for row in rows} == {1}
    if ordered:
        assert done.returncode == 0 and len(rows) == many and f"is damaged, its {many} rows" in done.stderr
    else:
        assert done.returncode == 4 and 0 < len(rows) <= many
        assert f"failed behind {len(rows)} rows" in done.stderr and "ORDER BY" in done.stderr
