"""Job tables and replication slots of a real PostgreSQL. Counts are prime, so no doubling or halving goes unseen."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from math import isnan
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from agent.queues import asking
from agent.queues.brokers.postgresql import (
    _END_QUERY,
    BROKER,
    LOCK_MS,
    STATEMENT_MS,
    TIMEOUT_S,
    PostgresQueues,
    PostgresServer,
    PostgresUrl,
)
from agent.queues.discover import discover
from agent.queues.judged import Judged
from agent.queues.packing import TABLE as QUEUE_LAG
from agent.queues.postgresql_client import PostgresConnection, _down
from agent.queues.postgresql_wal import SLOTS, STANDBYS, WalReaders
from agent.queues.queue import Row
from tests.patience import PATIENCE, until
from tests.servers.polled import failed, poll, row_of
from tests.servers.postgresql import QUERY, TABLE, TAKE, USER, Postgres, client
from tests.servers.rabbitmq import release_root
from tests.servers.test_rabbitmq import Odd

S = 10**9


@pytest.fixture(scope="module", params=["own", "trixie"])
def root(request: pytest.FixtureRequest) -> Path | None:
    """This host's release (Debian 12: PostgreSQL 15), and Debian 13's (17)."""
    return None if request.param == "own" else release_root(request.param, "postgresql")


@pytest.fixture(scope="module")
def running(root: Path | None) -> Iterator[Postgres]:
    server = Postgres(root=root)
    yield server
    server.end()


@pytest.fixture
def postgres(running: Postgres) -> Postgres:
    """Empty, but for the table."""
    running.do("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
    running.do("DROP TABLE IF EXISTS jobs")
    running.do(TABLE)
    return running


def source(server: Postgres, **more: Any) -> Judged:
    (queue,) = BROKER.sources([{"url": server.url, "query": QUERY, **more}])
    return queue


def add(server: Postgres, n: int, **values: str) -> None:
    names = ", ".join(values) or "queue"
    server.do(
        f"INSERT INTO jobs ({names}) SELECT {', '.join(values.values()) or repr('mail')} FROM generate_series(1, {n})"
    )


def take(server: Postgres, n: int, *, finish: bool = True) -> None:
    taken = TAKE.replace("id = (", "id IN (").replace("LIMIT 1", f"LIMIT {n}")
    ids = [str(one) for (one,) in server.do(taken)]
    if ids and finish:
        server.do(f"UPDATE jobs SET state = 'done' WHERE id IN ({', '.join(ids)})")


def test_each_figure_is_the_tables(postgres: Postgres) -> None:
    queue = source(postgres)
    add(postgres, 101)
    add(postgres, 7, run_at="now() + interval '1 hour'")
    add(postgres, 13, queue="'sms'", state="'done'")
    take(postgres, 17)
    take(postgres, 5, finish=False)
    postgres.do("UPDATE jobs SET attempts = 3 WHERE id BETWEEN 90 AND 92")
    began = time.monotonic()
    rows = poll(queue)
    row = row_of(rows, "mail")
    figures = {name: row[name] for name in ("lag_messages", "pending", "delayed", "redelivered")}
    assert figures == {"lag_messages": 101 - 17 - 5, "pending": 5, "delayed": 7, "redelivered": 3}
    assert (row["system"], row["exact"], row["server_role"]) == (b"postgresql", 1, b"primary")
    assert row["peer"].tobytes()[16:] == postgres.port.to_bytes(2, "little")
    first = poll(queue)
    ages = {name: row[name] for name in ("oldest_undelivered_s", "oldest_pending_s")}
    later = row_of(first, "mail")
    passed = time.monotonic() - began
    assert all(0 <= ages[name] <= later[name] <= ages[name] + passed + 0.05 for name in ages), (ages, later)
    sms = row_of(rows, "sms")
    assert (sms["lag_messages"], sms["lag_s"], sms["status"]) == (0, 0, b"ok")
    queue.close()


def test_delayed_jobs_are_timers_of_the_servers_wall_clock(postgres: Postgres) -> None:
    queue = source(postgres)
    add(postgres, 5)
    poll(queue)
    assert [row["timers"] for row in queue.timers()] == [0]
    add(postgres, 7, run_at="now() + interval '2 hours'")
    add(postgres, 3, run_at="now() + interval '1 hour'")
    add(postgres, 2, queue="'sms'", run_at="'infinity'")
    ((micros, version),) = postgres.do(
        "SELECT (extract(epoch FROM min(run_at) FILTER (WHERE run_at > now())) * 1000000)::bigint,"
        " current_setting('server_version_num')::int / 10000 FROM jobs"
    )
    mail, sms = sorted(timers(queue, 12), key=lambda row: bytes(row["destination"]))
    assert (mail["destination"], mail["kind"], mail["timers"], mail["due_wall_ns"]) == (
        b"mail",
        "eta",
        10,
        micros * 1000,
    )
    assert mail["version"].split(".")[0] == str(version)
    assert (mail["clock"] == "wall") == (version in (15, 17))  # as RULES has it
    assert (sms["destination"], sms["timers"], sms["due_wall_ns"]) == (b"sms", 2, None)
    assert version not in (15, 17) or "next_due is NULL or out of range" in sms["consequence"]
    queue.close()

    queue = source(postgres, query="SELECT queue, 0 AS ready, count(*) AS delayed FROM jobs GROUP BY queue")
    found = timers(queue, 12 + 5)
    assert {(row["due_wall_ns"], "no column next_due" in row["consequence"]) for row in found} == {
        (None, version in (15, 17))
    }
    postgres.do("ALTER TABLE jobs RENAME TO away")
    until(lambda: row_of(poll(queue), "mail")["status"] == b"unknown")
    assert queue.timers() == []  # what was known before holds on
    postgres.do("ALTER TABLE away RENAME TO jobs")
    queue.close()


def timers(queue: Judged, jobs: int) -> list[Any]:
    """Rows of ``timer_effect`` once they have so many jobs: a busy server is asked less often."""
    return [
        *until(
            lambda: poll(queue) is not None and sum(row["timers"] for row in queue.timers()) == jobs and queue.timers()
        )
    ]


def growing(server: Postgres, i: int) -> None:
    add(server, 7)
    take(server, 3)


def draining(server: Postgres, i: int) -> None:
    add(server, 307 if i == 0 else 2)
    take(server, 7)


def worker_stops(server: Postgres, i: int) -> None:
    add(server, 2)
    if i < 13:
        take(server, 5)


def idle_producer(server: Postgres, i: int) -> None:
    add(server, 11 if i < 3 else 0)
    take(server, 13)


def never_finishes(server: Postgres, i: int) -> None:
    add(server, 3)
    take(server, 3, finish=False)


@pytest.mark.parametrize(
    ("script", "status", "words"),
    [
        (growing, b"lagging", b"lag grew from"),
        (draining, b"draining", b"lag fell from"),
        (worker_stops, b"stalled", b"nothing read for"),
        (idle_producer, b"ok", b""),
        (never_finishes, b"stalled", b"none acknowledged for"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_state_is_what_the_script_did(
    postgres: Postgres,
    script: Callable[[Postgres, int], None],
    status: bytes,
    words: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_QUICK_NS", 10 * S)  # each poll asks, also on a busy host
    now_ns = [0]
    its = BROKER.server({"url": postgres.url, "query": QUERY, "slots": False})
    queue = Judged("postgresql", PostgresQueues(its, timeout_s=20), lambda: now_ns[0])
    for i in range(26):
        script(postgres, i)
        now_ns[0] += S
        row = row_of(poll(queue), "mail")
    queue.close()
    assert (row["status"], words in row["reason"]) == (status, True), row["reason"]
    if script is draining:
        assert row["lag_messages"] == 307 + 25 * 2 - 26 * 7
        assert abs(row["drains_in_s"] - 35) <= row["forecast_err_s"] < 5


def test_real_workers_that_stop_are_slow_and_are_killed(postgres: Postgres) -> None:
    queue = source(postgres)
    with client("produce", postgres.port, 40), client("work", postgres.port, 0.3) as worker:
        # between two messages, none is pending
        until(lambda: (row := row_of(poll(queue), "mail"))["out_per_s"] > 0 and row["pending"] == 1)
        until(lambda: row_of(poll(queue), "mail")["in_per_s"] > 20)
        worker.send_signal(signal.SIGSTOP)
        row = until(lambda: (row := row_of(poll(queue), "mail"))["status"] == b"stalled" and row)
        assert b"nothing read" in row["reason"]
    (before,) = postgres.do("SELECT count(*) FROM jobs WHERE state = 'ready'")[0]
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["pending"]) == (before, 1)  # what the worker had taken when it was killed
    queue.close()


def test_a_worker_that_holds_a_row_keeps_nobody_waiting(postgres: Postgres) -> None:
    """Its job is ready for everybody else until it commits, and again when it is killed."""
    add(postgres, 11)
    queue = source(postgres)
    holder = psycopg2.connect(postgres.url)
    try:
        with holder.cursor() as cursor:
            cursor.execute(TAKE)
        assert row_of(poll(queue), "mail")["lag_messages"] == 11
    finally:
        os.kill(holder.info.backend_pid, signal.SIGTERM)
        holder.close()
    assert row_of(poll(queue), "mail")["lag_messages"] == 11
    queue.close()


def test_nothing_is_locked_between_polls_and_a_locked_table_costs_only_its_queues(postgres: Postgres) -> None:
    add(postgres, 5)
    postgres.do("SELECT pg_create_physical_replication_slot('site', true)")
    queue = source(postgres)
    poll(queue)
    about = "FROM pg_stat_activity WHERE application_name = 'tickscope'"
    assert postgres.do(f"SELECT state, backend_xmin {about}") == [("idle", None)]
    assert postgres.do(f"SELECT 1 FROM pg_locks WHERE pid IN (SELECT pid {about})") == []
    with contextlib.closing(psycopg2.connect(postgres.url)) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        rows = poll(queue)
        row = row_of(rows, "mail")
        assert (row["status"], row["reason"]) == (
            b"unknown",
            f"a table of the query is locked for over {LOCK_MS} ms (ACCESS EXCLUSIVE): see pg_locks".encode(),
        )
        assert row_of(rows, "wal", "site")["consumers"] == 0
        assert failed(row) == "other"
    row = until(lambda: (row := row_of(poll(queue), "mail"))["lag_messages"] == 5 and row)
    assert row["status"] == b"ok"
    assert len(postgres.do(f"SELECT 1 {about}")) == 1
    queue.close()


def test_advisory_locks_of_a_function_end_with_the_query(postgres: Postgres) -> None:
    postgres.do(
        "CREATE OR REPLACE FUNCTION free(id bigint) RETURNS bool LANGUAGE sql AS 'SELECT pg_try_advisory_lock(id)'"
    )
    add(postgres, 5)
    queue = source(postgres, query="SELECT 'mail' AS queue, count(*) AS ready FROM jobs WHERE free(id)", slots=False)
    assert row_of(poll(queue), "mail")["lag_messages"] == 5
    assert postgres.do("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
    queue.close()


@pytest.mark.parametrize(("ours", "kept"), [(True, 0), (False, 1)])
def test_locks_of_other_clients_of_a_pooler_stay(postgres: Postgres, ours: bool, kept: int) -> None:
    server = PostgresServer(PostgresUrl.parse(postgres.url))
    connection = PostgresConnection(server.libpq(None), time.monotonic() + 9 * PATIENCE, 9 * PATIENCE)
    number = connection.process_id if ours else 0
    for statement in ("BEGIN READ ONLY", "SELECT pg_advisory_lock(7)", _END_QUERY.format(number)):
        connection.ask(statement, time.monotonic() + 9 * PATIENCE)
    assert postgres.do("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(kept,)]
    connection.close()


def test_a_slow_query_is_asked_seldom_and_its_figures_are_marked(postgres: Postgres) -> None:
    add(postgres, 3)
    slow = "SELECT 'mail' AS queue, count(*) AS ready FROM jobs, pg_sleep(0.2)"
    queue = source(postgres, query=slow, slots=False)
    assert row_of(poll(queue), "mail")["exact"] == 1
    add(postgres, 2)
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["exact"], row["inexact_reason"]) == (3, 0, b"as of 0 s ago: asking takes long")
    assert row["poll_ns"] < 0.2 * S
    until(lambda: row_of(poll(queue), "mail")["lag_messages"] == 5)
    queue.close()


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("SELECT count(*) AS ready FROM jobs", "no column queue"),
        ("SELECT queue FROM jobs", "no column ready"),
        ("SELECT queue, 1 AS ready, 2 AS failed FROM jobs", "unknown column failed; known: queue"),
        ("SELECT queue, 1 AS ready, 2 AS ready FROM jobs", "two columns ready"),
        ("SELECT queue, 1.5::float8 AS ready FROM jobs", "column ready is not a whole number"),
        ("SELECT queue, 1 AS ready, run_at::timestamp AS oldest FROM jobs", "no time zone: write it as oldest AT TIME"),
        ("SELECT queue, 1 AS ready, 5 AS oldest FROM jobs", "oldest is not a timestamp"),
        ("SELECT queue, id AS ready FROM jobs FOR UPDATE SKIP LOCKED", "must only read: cannot execute SELECT FOR UP"),
        ("SELECT queue, id AS ready FROM jobs WHERE pg_try_advisory_lock(id)", "must take no locks: leave out pg_adv"),
        ("DELETE FROM jobs RETURNING queue, 1 AS ready", "the query is not one SELECT: syntax error"),
        ("SELECT 'a' AS queue, 1 AS ready; DROP TABLE jobs", "the query is not one SELECT: syntax error"),
        ("SELECT queue, 1 AS ready FROM nothing", 'query: relation "nothing" does not exist'),
        (
            f"SELECT 'a' AS queue, 1 AS ready FROM pg_sleep({STATEMENT_MS / 1000 + 1})",
            f"over {STATEMENT_MS} ms: add an",
        ),
        ("SELECT 'a' AS queue, 1 / 0 AS ready FROM jobs", "query: division by zero"),
    ],
)
def test_a_query_that_does_not_fit_is_refused_in_words_and_costs_nothing_else(
    postgres: Postgres, query: str, words: str
) -> None:
    add(postgres, 1)
    add(postgres, 1)
    postgres.do("SELECT pg_create_physical_replication_slot('site', true)")
    queue = source(postgres, query=query)
    rows = poll(queue)
    (problem,) = rows[rows["destination"] == b""]
    assert words in problem["reason"].decode(), problem["reason"]
    assert problem["status"] == b"unknown"
    assert row_of(rows, "wal", "site")["status"] == b"ok"
    assert postgres.do("SELECT count(*) FROM jobs") == [(2,)]
    queue.close()


def test_odd_values_are_unknown_with_a_reason(postgres: Postgres) -> None:
    odd = """VALUES ('a', -1, 3::bigint, now()), ('b', NULL, -5, now()), ('c', 7, 0, now() + interval '1 h'),
        ('d', 2, 1, 'infinity'), (repeat('x', 999), 1, 0, NULL)"""
    queue = source(postgres, query=f"SELECT * FROM ({odd}) AS v (queue, ready, pending, oldest);")
    rows = poll(queue)
    assert set(rows["destination"][rows["destination"] != b""].tolist()) >= {b"a", b"b", b"c", b"d"}, rows
    found = [row_of(rows, name) for name in "abcd"]
    assert [(bytes(row["inexact_reason"]), row["lag_messages"] < 0) for row in found] == [
        (b"ready is negative", True),
        (b"pending is negative", True),
        (b"oldest is in the future", False),
        (b"oldest is infinite", False),
    ]
    assert all(isnan(row["oldest_undelivered_s"]) for row in found[2:])
    assert row_of(rows, "b")["status"] == b"unknown"
    queue.close()


def test_an_odd_row_spoils_its_own_queue_only(postgres: Postgres) -> None:
    odd = """VALUES ('half', 2.5), ('nan', 'NaN'), ('huge', 1e30), ('less', -0.3), ('twice', 1), ('twice', 2),
        (NULL, 3), ('', 3), ('well', 7.0), ('null', NULL)"""
    queue = source(postgres, query=f"SELECT * FROM ({odd}) AS v (queue, ready)", slots=False)
    rows = poll(queue)
    named = {row["destination"].decode(): row for row in rows if row["destination"]}
    assert {name for name, row in named.items() if row["lag_messages"] >= 0} == {"well"}
    assert named["well"]["lag_messages"] == 7
    assert {name: row["reason"].decode() for name, row in named.items() if row["status"] != b"ok"} == {
        "half": "ready is no whole number",
        "nan": "ready is no whole number",
        "huge": "ready is no whole number",
        "less": "ready is negative",
        "twice": "the query has several rows of this queue",
        "null": "ready is NULL",
    }
    assert {row["reason"][:33] for row in rows if not row["destination"]} == {b"a row without a queue is not watc"}
    queue.close()


PROCRASTINATE = """
import sys, time
import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[1]))

@app.task(queue="mail", name="send")
def send(n):
    time.sleep(1e6 if n == 5 else 0)

if sys.argv[2] == "work":
    app.run_worker(queues=["mail"], wait=True, concurrency=1, install_signal_handlers=False)
else:
    with app.open():
        app.schema_manager.apply_schema()
        for n in range(17):
            app.configure_task("send", queue="mail").defer(n=n)
        for n in range(7):
            app.configure_task("send", queue="mail", schedule_in={"hours": 1}).defer(n=100 + n)
"""


def test_jobs_of_procrastinate(postgres: Postgres) -> None:
    """Its worker takes five jobs, and keeps the sixth."""
    command = [sys.executable, "-c", PROCRASTINATE, postgres.url]
    subprocess.run([*command, "fill"], check=True, timeout=120)
    queue = source(postgres, query="", jobs="procrastinate")
    row = row_of(poll(queue), "mail")
    assert (row["lag_messages"], row["pending"], row["delayed"], row["status"]) == (17, 0, 7, b"ok")
    assert 0 <= row["lag_s"] < 60 * PATIENCE
    ((micros,),) = postgres.do(
        "SELECT (extract(epoch FROM min(scheduled_at)) * 1000000)::bigint FROM procrastinate_jobs"
    )
    assert [(timer["timers"], timer["due_wall_ns"]) for timer in timers(queue, 7)] == [(7, micros * 1000)]
    with subprocess.Popen([*command, "work"], stderr=subprocess.DEVNULL) as worker:
        try:
            row = until(lambda: (row := row_of(poll(queue), "mail"))["lag_messages"] == 17 - 6 and row)
            assert (row["pending"], row["delayed"], row["redelivered"]) == (1, 7, 0)
            assert 0 <= row["oldest_pending_s"] < 60 * PATIENCE
        finally:
            worker.kill()
    postgres.do("UPDATE procrastinate_jobs SET status = 'succeeded'")
    row = row_of(poll(queue), "mail")  # no group is left of it
    assert (row["lag_messages"], row["pending"], row["delayed"], row["lag_s"]) == (0, 0, 0, 0)
    queue.close()


def lsn(server: Postgres, of: str) -> int:
    return int(server.do(f"SELECT pg_wal_lsn_diff({of}, '0/0')::bigint")[0][0])


def behind(row: Any) -> int:
    return int(row["lag_bytes"])


def test_slots_in_bytes_and_seconds(postgres: Postgres) -> None:
    queue = source(postgres)
    postgres.do("SELECT pg_create_physical_replication_slot('unused')")
    postgres.do("SELECT pg_create_logical_replication_slot('site', 'test_decoding')")
    with client("read", postgres.port, "site") as reader:
        row = until(lambda: (row := row_of(poll(queue), "postgres", "site"))["consumers"] == 1 and row)
        assert row["holder"] == b"reader@127.0.0.1"
        with client("produce", postgres.port, 50):
            until(lambda: row_of(poll(queue), "postgres", "site")["lag_s"] < 5)
        reader.send_signal(signal.SIGSTOP)
        where = "FROM pg_replication_slots WHERE slot_name = 'site'"
        rows = poll(queue)
        began = time.monotonic()
        add(postgres, 199)
        confirmed, end = lsn(postgres, f"(SELECT confirmed_flush_lsn {where})"), lsn(postgres, "pg_current_wal_lsn()")
        row = row_of(poll(queue), "postgres", "site")
        assert end - confirmed <= behind(row) <= lsn(postgres, "pg_current_wal_lsn()") - confirmed
        assert row["lag_messages"] == QUEUE_LAG.by_name["lag_messages"].null
        until(lambda: row_of(poll(queue), "postgres", "site")["lag_s"] > 3)
        row = row_of(poll(queue), "postgres", "site")
        assert row["lag_s"] - row["lag_error_s"] <= time.monotonic() - began + 15  # of what was not confirmed before
        assert row["lag_basis"] == QUEUE_LAG.by_name["lag_basis"].code("history")
        row = row_of(rows, "wal", "unused")
        assert b"reserved no WAL" in row["reason"]
    row = until(lambda: (row := row_of(poll(queue), "postgres", "site"))["status"] == b"stopped" and row)
    assert b"no consumer for" in row["reason"] and b"bytes undelivered" in row["reason"]
    assert isnan(row["in_per_s"])
    postgres.do("SELECT pg_drop_replication_slot('site')")
    row = row_of(poll(queue), "postgres", "site")
    assert (row["status"], b"slot was dropped" in row["reason"]) == (b"gone", True)
    queue.close()


def test_a_slot_that_loses_its_wal(root: Path | None) -> None:
    server = Postgres(root=root, segment_mb=1, max_slot_wal_keep_size="4MB", min_wal_size="2MB", max_wal_size="2MB")
    try:
        server.do(TABLE)
        server.do("SELECT pg_create_physical_replication_slot('late', true)")
        queue = source(server)
        assert row_of(poll(queue), "wal", "late")["status"] == b"ok"
        server.do("SELECT pg_create_logical_replication_slot('other', 'test_decoding')")

        def grown() -> Any:
            for _ in range(2):
                server.do("INSERT INTO jobs (queue) SELECT repeat('x', 5000) || i FROM generate_series(1, 3) AS i")
                server.do("SELECT pg_switch_wal()")
            server.do("CHECKPOINT")
            return (row := row_of(poll(queue), "wal", "late"))["status"] == b"gone" and row

        row = until(grown)
        assert b"max_slot_wal_keep_size" in row["reason"] and b"set its consumer up anew" in row["reason"]
        assert server.do("SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'late'") == [("lost",)]
        queue.close()
    finally:
        server.end()


def test_a_standby_and_its_replay(postgres: Postgres) -> None:
    standby = Postgres.standby(postgres, "site")
    try:
        queue, its = source(postgres), source(standby)
        until(lambda: row_of(poll(queue), "wal", "site")["consumers"] == 1)
        until(lambda: b"standby (replay)" in poll(queue)["consumer_group"])
        row = until(lambda: (row := row_of(poll(queue), "wal", "standby (replay)"))["lag_s"] == 0 and row)
        assert row["holder"] == b"standby@127.0.0.1"
        add(postgres, 23)
        until(lambda: b"mail" in poll(its)["destination"])
        row = until(lambda: (row := row_of(poll(its), "mail"))["lag_messages"] == 23 and row)
        assert row["server_role"] == b"replica"
        standby.do("SELECT pg_wal_replay_pause()")
        until(lambda: b"replay is paused" in row_of(poll(its), "wal", "replay")["inexact_reason"] or add(postgres, 1))
        add(postgres, 59)
        row = until(lambda: (row := row_of(poll(its), "wal", "replay"))["lag_s"] > 1 and row)
        assert b"replay is paused" in row["inexact_reason"] and behind(row) > 59
        row = until(lambda: (row := row_of(poll(queue), "wal", "standby (replay)"))["lag_s"] > 1 and row)
        received = row_of(poll(queue), "wal", "site")
        assert behind(received) < behind(row)
        standby.do("SELECT pg_wal_replay_resume()")
        until(lambda: row_of(poll(its), "wal", "replay")["lag_s"] == 0)
        standby.stop()
        until(lambda: row_of(poll(queue), "wal", "site")["consumers"] == 0)
        (row,) = {bytes(row["status"]) for row in poll(its)}
        assert row == b"down"
        queue.close()
        its.close()
    finally:
        standby.end()


def test_a_standby_that_is_promoted(postgres: Postgres) -> None:
    """Its job table and its slots go on. Its replay ends, which is no slot that was dropped."""
    standby = Postgres.standby(postgres, "site")
    try:
        add(postgres, 409)
        standby.do("SELECT pg_create_physical_replication_slot('backup', true)")
        its = source(standby, cluster="shop")
        until(lambda: b"mail" in poll(its)["destination"])
        until(lambda: (row := row_of(poll(its), "mail"))["lag_messages"] == 409 and row["server_role"] == b"replica")
        until(lambda: b"replay" in poll(its)["consumer_group"])
        postgres.stop()
        standby.do("CHECKPOINT")
        subprocess.run(
            standby.command("pg_ctl", "promote", "-D", str(standby.data)), check=True, stdout=subprocess.DEVNULL
        )
        found = [poll(its) for _ in range(5)]
        until(lambda: set(poll(its)["server_role"].tolist()) == {b"primary"})
        rows = poll(its)
        for each in (*found, rows, poll(its)):
            assert set(each["status"].tolist()) <= {b"ok", b"stopped"}, each
            assert set(each["cluster"].tolist()) == {b"shop"}
            assert row_of(each, "mail")["lag_messages"] == 409
            assert row_of(each, "wal", "backup")["lag_bytes"] >= 0
        assert rows["consumer_group"].tolist() == [b"backup", b""]  # and no replay
        with client("work", standby.port, 0.1):
            row = until(lambda: (row := row_of(poll(its), "mail"))["status"] == b"draining" and row)
        assert 0 < row["lag_messages"] < 409 and row["drains_in_s"] > row["forecast_err_s"] > 0
        its.close()
    finally:
        standby.end()
        postgres.start()


def test_least_rights(postgres: Postgres) -> None:
    postgres.do("DROP ROLE IF EXISTS watch")
    postgres.do("CREATE ROLE watch LOGIN")
    postgres.do("SELECT pg_create_physical_replication_slot('site', true)")
    add(postgres, 19)
    url = postgres.url.replace(f"{USER}@", "watch@")
    queue = source(postgres, url=url)
    rows = poll(queue)
    assert row_of(rows, "wal", "site")["consumers"] == 0
    (problem,) = rows[rows["destination"] == b""]
    assert (failed(problem), problem["reason"]) == (
        "permission",
        b"permission denied for table jobs: GRANT SELECT to this role",
    )
    postgres.do("GRANT SELECT ON jobs TO watch")
    until(lambda: 19 in poll(queue)["lag_messages"])
    where = ("-D", str(postgres.directory), "-U", USER, "-h", "127.0.0.1", "-p", str(postgres.port))
    with subprocess.Popen(postgres.command("pg_receivewal", "-S", "site", *where), stderr=subprocess.DEVNULL) as other:
        try:
            until(lambda: any(b"pg_read_all_stats" in row["reason"] for row in poll(queue)))
            until(lambda: row_of(poll(queue), "wal", "site")["holder"] == b"pg_receivewal")  # not where it runs
            postgres.do("GRANT pg_read_all_stats TO watch")
            until(lambda: b"pg_receivewal (replay)" in poll(queue)["consumer_group"])
            assert row_of(poll(queue), "wal", "site")["holder"] == b"pg_receivewal@127.0.0.1"
        finally:
            other.kill()
    until(lambda: row_of(poll(queue), "wal", "site")["consumers"] == 0)  # the next test drops the slot
    queue.close()
    postgres.do("REVOKE SELECT ON jobs FROM watch")
    postgres.do("DROP ROLE watch")


def test_a_stopped_a_dead_and_a_returned_server(postgres: Postgres) -> None:
    add(postgres, 5)
    queue = source(postgres)
    assert row_of(poll(queue), "mail")["lag_messages"] == 5
    postgres.signal(signal.SIGSTOP)
    try:
        row = row_of(poll(queue), "mail")
    finally:
        postgres.signal(signal.SIGCONT)
    assert (row["status"], failed(row)) == (b"down", "no_answer")
    assert TIMEOUT_S * S <= row["poll_ns"] < 10 * S * PATIENCE
    until(lambda: row_of(poll(queue), "mail")["status"] == b"ok")
    postgres.do("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'tickscope'")
    row = row_of(poll(queue), "mail")
    assert (row["reason"].decode().rpartition(": ")[2], failed(row)) == (
        "terminating connection due to administrator command",
        "closed",
    )
    assert row_of(poll(queue), "mail")["status"] == b"ok"  # it does not wait, as after a refused login
    postgres.stop()
    until(lambda: failed(row_of(poll(queue), "mail")) == "refused")
    postgres.start()
    row = until(lambda: (row := row_of(poll(queue), "mail"))["status"] == b"ok" and row)
    assert row["lag_messages"] == 5
    queue.close()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, Path]]:
    """A server with TLS and passwords, and the directory of its certificate, which signs itself."""
    here = tmp_path_factory.mktemp("tls")
    for name in ("server", "other"):
        options = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout {name}.key -out {name}.pem"
        subject = ["-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run(["openssl", *options.split(), *subject], cwd=here, check=True, capture_output=True)
    hba = f"local all all trust\nhostssl all {USER} 127.0.0.1/32 trust\nhostssl all all 127.0.0.1/32 scram-sha-256\n"
    server = Postgres(hba=hba, tls=here / "server", ssl="on")
    server.do("CREATE ROLE watch LOGIN PASSWORD 's3cret'")
    yield server, here
    server.end()


@pytest.mark.parametrize(
    ("url", "section", "failure", "words"),
    [
        ("watch@127.0.0.1:{}/postgres", {"ca_file": "server.pem", "password_file": "password"}, "", ""),
        ("watch:s3cret@127.0.0.1:{}/postgres?sslmode=require", {}, "", ""),
        ("watch:no@127.0.0.1:{}/postgres", {}, "login", "password authentication failed"),
        ("watch@127.0.0.1:{}/postgres", {}, "login", "no password supplied"),
        ("watch@127.0.0.1:{}/postgres", {"password_file": "none"}, "login", "No such file"),
        ("watch:s3cret@127.0.0.1:{}/none", {}, "login", 'database "none" does not exist'),
        ("watch:s3cret@127.0.0.1:{}/postgres?sslmode=disable", {}, "login", "no encryption"),
        ("watch:s3cret@127.0.0.1:{}/postgres", {"ca_file": "other.pem"}, "login", "verify failed: set `ca_file`"),
        (
            "watch:s3cret@localhost:{}/postgres",
            {"ca_file": "server.pem"},
            "login",
            "certificate verify failed: set `url` to a name in it (",
        ),
    ],
)
def test_login_and_certificates(
    secured: tuple[Postgres, Path], url: str, section: dict[str, str], failure: str, words: str
) -> None:
    server, here = secured
    (here / "password").write_text("s3cret\n")
    files = {name: str(here / path) for name, path in section.items()}
    its = BROKER.server({"url": f"postgresql://{url.format(server.port)}", **files})
    queue = Judged("postgresql", PostgresQueues(its, timeout_s=20))
    until(lambda: b"no address" not in poll(queue)[0]["reason"])
    (row,) = poll(queue)
    assert words in row["reason"].decode(), row["reason"]
    assert b"s3cret" not in row["reason"]
    if failure:
        assert (row["status"], failed(row)) == (b"down", failure)
        size = server.log.stat().st_size
        assert [failed(row) for row in poll(queue)] == [failure]
        assert server.log.stat().st_size == size  # it is not asked again at once
    else:
        assert row["status"] == b"ok"
    queue.close()


def _slowly(connection: Any) -> None:
    for letter in b"R\0\0\0\x08\0\0\0\0" + b"S\0\0\0\x09a\0bb\0" * 99:
        connection.sendall(bytes([letter]))
        time.sleep(0.1)


def _endless(connection: Any) -> None:
    connection.sendall(b"R\0\0\0\x08\0\0\0\0")
    while True:
        connection.sendall(b"S\0\0\0\x08a\0b\0" * 1000)


@pytest.mark.parametrize(
    ("say", "failures"),
    [
        (_slowly, ("no_answer",)),
        (lambda _: time.sleep(20), ("no_answer",)),
        (_endless, ("no_answer", "other")),
        (lambda c: c.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), ("closed", "other", "login", "no_answer")),
        (lambda c: c.shutdown(2), ("closed",)),
        (lambda c: c.sendall(b"R\x7f\xff\xff\xff\0\0\0\0" + b"x" * 9999), ("closed", "other", "login", "no_answer")),
    ],
)
def test_a_server_that_answers_badly_is_down_with_the_reason(
    say: Callable[[Any], None], failures: tuple[str, ...]
) -> None:
    server = Odd(say)
    (queue,) = BROKER.sources([f"postgresql://u:s3cret@127.0.0.1:{server.port}/d?sslmode=disable"])
    began = time.monotonic()
    (row,) = poll(queue)
    took = time.monotonic() - began
    queue.close()
    server.close()
    assert row["status"] == b"down" and failed(row) in failures, row["reason"]
    assert row["reason"] and b"s3cret" not in row["reason"]
    assert took < 10 * PATIENCE
    assert threading.active_count() < 50


def test_a_server_of_this_node_is_found_with_its_setting(postgres: Postgres) -> None:
    with contextlib.closing(psycopg2.connect(postgres.url)):
        (found,) = (one for one in discover({}) if one.port == postgres.port)
    assert (found.system, found.how, found.by) == ("postgresql", "listens", "process")
    assert found.setting == f"postgresql: ['postgresql://127.0.0.1:{postgres.port}']"
    (found,) = (one for one in discover({"postgresql": ({"url": postgres.url},)}) if one.port == postgres.port)
    assert found.configured


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("SSL connection has been closed unexpectedly", "closed"),
        ("SSL SYSCALL error: EOF detected", "closed"),
        ("SSL SYSCALL error: Connection timed out", "no_answer"),
        ("could not receive data from server: Connection timed out", "no_answer"),
        ('could not open certificate file "/c.pem": No such file or directory', "login"),
        ("SSL error: certificate verify failed", "login"),
        ("server does not support SSL, but SSL was required", "login"),
    ],
)
def test_a_server_that_ends_over_tls_is_no_refused_login(text: str, failure: str) -> None:
    assert _down(Exception(text)).failure == failure


def test_a_slower_standby_of_the_same_name_that_returns_is_no_step_back() -> None:
    """pg_stat_replication has one row of each; the slowest counts."""
    now_ns, readers = [0], WalReaders()

    class Standbys:
        name = "postgresql h"

        def __init__(self) -> None:
            self.positions = [5000, 5100, 5200, 900, 1000, 1100, 1200]

        def poll(self) -> list[Row]:
            now_ns[0] += 2 * 10**9
            standby = ("walreceiver", "10.0.0.1", 0, self.positions.pop(0), 0.1, 1)
            return readers.rows([], [standby], (0, None, 0, 6000 + now_ns[0] // 10**8), (now_ns[0], now_ns[0]))

        def close(self) -> None: ...

    queue = Judged("postgresql", Standbys(), lambda: now_ns[0])
    assert "rewound" not in [row["status"] for _ in range(7) for row in queue.poll()]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ("true AS conflicting", b"slot is lost: conflict with recovery (hot_standby_feedback, wal_level): drop it"),
        ("false AS conflicting", b"max_slot_wal_keep_size"),
        ("true AS conflicting, 'rows_removed' AS invalidation_reason", b"slot is lost: rows_removed: drop it"),
    ],
    ids=["16", "16 without a conflict", "17"],
)
def test_a_slot_that_conflicts_with_recovery(postgres: Postgres, columns: str, words: bytes) -> None:
    slot = (
        "(SELECT 'site' AS slot_name, 'logical' AS slot_type, 'shop' AS database, false AS active, NULL::int AS"
        " active_pid, '0/10'::pg_lsn AS restart_lsn, '0/10'::pg_lsn AS confirmed_flush_lsn, 'lost' AS wal_status,"
        f" NULL::int8 AS safe_wal_size, {columns}) AS s"
    )
    slots = postgres.do(SLOTS.replace("pg_replication_slots AS s", slot))
    (row,) = WalReaders().rows(slots, [], (1, None, 0, 200), (S, S))
    assert (row["status"], row["destination"], row["consumer_group"]) == ("gone", b"shop", b"site")
    assert words in row["reason"].encode()


@pytest.mark.parametrize(("standby", "active"), [("true", None), ("false", 0)])
def test_a_copy_of_a_slot_is_one_on_a_standby_only(postgres: Postgres, standby: str, active: int | None) -> None:
    """A server that was promoted keeps the mark of its slots."""
    slot = (
        "(SELECT 'site' AS slot_name, 'logical' AS slot_type, 'shop' AS database, false AS active, NULL::int AS"
        " active_pid, '0/10'::pg_lsn AS restart_lsn, '0/10'::pg_lsn AS confirmed_flush_lsn, 'reserved' AS wal_status,"
        " NULL::int8 AS safe_wal_size, true AS synced) AS s"
    )
    slots = postgres.do(SLOTS.replace("pg_replication_slots AS s", slot).replace("pg_is_in_recovery()", standby))
    (row,) = WalReaders().rows(slots, [], (1, None, 0, 200), (S, S))
    assert row["consumers"] == active


def test_a_slot_beyond_the_bound_is_not_taken_for_dropped() -> None:
    readers = WalReaders()
    for t_ns, names in ((S, range(1, 258)), (2 * S, range(257)), (3 * S, range(100))):
        slots = [(f"s{n:03}", "", 0, "reserved", None, 100, 100, "", "", "", None, len(names)) for n in names][:256]
        rows = readers.rows(slots, [], (0, None, 0, 200), (t_ns, t_ns))
        dropped = [row for row in rows if row.get("status") == "gone"]
        assert bool(dropped) == (t_ns == 3 * S), dropped


def test_a_server_that_asks_for_a_certificate_names_the_setting() -> None:
    down = _down(Exception("FATAL:  connection requires a valid client certificate"))
    assert (str(down), down.failure) == (
        "connection requires a valid client certificate: set `certificate_file`, `key_file`",
        "login",
    )


def test_slots_and_standbys_beyond_the_bound_are_counted(postgres: Postgres) -> None:
    number = "generate_series(1, 261) AS n"
    slot = (
        "(SELECT 's' || n AS slot_name, 'physical' AS slot_type, NULL AS database, false AS active, NULL::int AS"
        " active_pid, '0/10'::pg_lsn AS restart_lsn, NULL::pg_lsn AS confirmed_flush_lsn, 'reserved' AS wal_status,"
        f" NULL::int8 AS safe_wal_size FROM {number}) AS s"
    )
    standby = (
        "(SELECT 'b' || n AS application_name, NULL::inet AS client_addr, 'streaming' AS state, '0/10'::pg_lsn AS"
        " replay_lsn, '0/10'::pg_lsn AS flush_lsn, '0/10'::pg_lsn AS write_lsn, now() AS reply_time, n AS pid"
        f" FROM {number}) AS r"
    )
    slots = postgres.do(SLOTS.replace("pg_replication_slots AS s", slot))
    standbys = postgres.do(STANDBYS.replace("pg_stat_replication AS r", standby))
    rows = WalReaders().rows(slots, standbys, (0, None, 0, 200), (S, S))
    reasons = [row["reason"] for row in rows if "reason" in row]
    assert reasons == [f"5 {what} more than 256 are not watched" for what in ("replication slots", "standbys")]
    assert len(rows) == 2 + 256 + 256
