"""``tickscope queues``: one line a queue at every width, its partitions, servers that change, and one in detail."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Batch, make
from agent.cli import queues_list, queues_text
from agent.common.address import V4_MAPPED, peer_bytes
from agent.common.clocks import boot_ns
from agent.common.duration import brief
from agent.tables import TABLES
from tests.commands import on_terminal, tickscope_text
from tests.unit.test_query import write

S = 10**9
ROOT = Path(__file__).resolve().parents[2]


def lag(t_ns: int, lag: int | None, destination: str = "orders", group: str = "billing", **columns: Any) -> Batch:
    values = {
        "system": "redis",
        "cluster": "10.0.0.1:6379",
        "peer": peer_bytes("10.0.0.1", 6379),
        "exact": 1,
        "status": "ok",
        **columns,
    }
    known = {} if lag is None else {"lag_messages": lag}
    return make("queue_lag", 1, t_ns=t_ns, destination=destination, consumer_group=group, **known, **values)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three minutes of a queue that grows, a deleted one, one that moved to another server, and a topic."""
    end = boot_ns()
    rows = []
    for i in range(180):
        t = end - (180 - i) * S
        grows = {"status": "lagging", "reason": f"lag grew from {i} to {i + 10} in 10 s"} if i >= 90 else {}
        rows.append(lag(t, i, lag_s=i / 2, pending=3, consumers=2, in_per_s=10.0, out_per_s=9.0, **grows))
        if i < 60:
            rows.append(lag(t, 5, "deleted"))
            rows.append(lag(t, None, "dropped", status="gone", reason=f"the queue was deleted; {i} s ago"))
        rows.append(
            lag(
                t,
                7,
                "moved",
                status="draining",
                drains_in_s=70.0,
                peer=peer_bytes("10.0.0.1" if i < 90 else "10.0.0.2", 6379),
            )
        )
        rows += [
            lag(t, 10 * p + i // 90, "topic", system="kafka", cluster="k", partition=str(p), status="ok")
            for p in range(11)
        ]
        rows.append(
            lag(t, 100, "topic", system="kafka", cluster="k", partition="11", status="stalled", reason="nothing read")
        )
    rows.append(lag(end - 100 * S, None, "", "", status="ok"))  # the server had no group then
    rows.append(make("socket_queue", 1, t_ns=end - S, kind=0, queue=2, limit=128, sport=80, saddr=b"\0" * 16))
    write(tmp_path, *rows)
    return tmp_path


def rows(store: Path, *argv: str) -> list[dict[str, Any]]:
    done = tickscope_text("queues", "--store", store, "-o", "json", *argv)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout)["rows"])


def test_each_queue_in_its_latest_state(store: Path) -> None:
    found = rows(store)
    assert [tuple(row) for row in found] == [queues_list.COLUMNS] * len(found)
    by_name = {(row["queue"], row["partition"]): row for row in found}
    assert [row["system"] for row in found] == [*["kafka"] * 12, *["redis"] * 4, "accept"]
    assert [row["partition"] for row in found[:12]] == [str(p) for p in range(12)]
    moved, orders, deleted = by_name["moved", None], by_name["orders", None], by_name["deleted", None]
    assert (moved["peer"], moved["length"], moved["drains_in_s"]) == ("10.0.0.2:6379", 7, 70.0)
    assert (orders["length"], orders["lag_s"], orders["status"]) == (179, 89.5, "lagging")
    assert (deleted["status"], deleted["reason"]) == ("unknown", "missing in the polls for 120 s: was it deleted?")
    dropped = by_name["dropped", None]
    assert (dropped["status"], dropped["reason"]) == ("gone", "the queue was deleted; 59 s ago")
    assert orders["trend"] == [None] * 4 + [29, 59, 89, 119, 149, 179]
    assert by_name["topic", "3"]["trend"] == [None] * 4 + [30] * 3 + [31] * 3
    assert found[-1]["trend"] is None


def test_rows_that_say_nothing_any_more_are_left_out(tmp_path: Path) -> None:
    """Of what was down and is not polled now, of a work queue that has consumers now, and of a server that
    answers again; but not of a server that is down while others of its cluster answer.
    """
    end = boot_ns()
    its = {"system": "nats", "cluster": "C1"}
    others = {n: peer_bytes(f"10.0.0.{n}", 4222) for n in (2, 3, 4)}
    batches = []
    for i in range(60):
        t = end - (60 - i) * S
        batches.append(lag(t, 7, "alive", **its))
        if i < 30:
            batches.append(lag(t, None, "deleted", **its, status="gone"))
            batches.append(lag(t, None, "raft", "10.0.0.2:2379", **its, status="down"))
            batches.append(lag(t, 3, "work", "", **its))
            batches.append(lag(t, None, "", "", **its, status="down", peer=others[2]))
        else:
            batches.append(lag(t, 3, "work", "w1", **its))
            batches.append(lag(t - S // 2, None, "", "", **its, status="down", peer=others[3]))
            batches.append(lag(t - S // 4, None, "", "", **its, status="ok", peer=others[4]))
    write(tmp_path, *batches)
    shown = {(row["queue"], row["consumer_group"], row["status"], row["peer"]) for row in rows(tmp_path)}
    assert shown == {
        ("alive", "billing", "ok", "10.0.0.1:6379"),
        ("deleted", "billing", "gone", "10.0.0.1:6379"),
        ("work", "w1", "ok", "10.0.0.1:6379"),
        (None, None, "down", "10.0.0.3:4222"),
    }


def test_a_queue_that_was_deleted_before_a_fail_over_is_missing_after_it(tmp_path: Path) -> None:
    end, promoted = boot_ns(), {"peer": peer_bytes("10.0.0.2", 6379)}
    batches = [
        lag(end - i * S, 7, "moved", **(promoted if i <= 50 else {})) for i in range(100, 0, -1) if not 50 < i < 70
    ]
    batches += [lag(end - i * S, 5, "deleted") for i in range(100, 59, -1)]
    write(tmp_path, *sorted(batches, key=lambda batch: int(batch.rows["t_ns"][0])))
    assert {row["queue"]: row["status"] for row in rows(tmp_path)} == {"moved": "ok", "deleted": "unknown"}


def test_servers_of_a_cluster_that_are_polled_seldom_have_their_queues(tmp_path: Path) -> None:
    """Every 30 s, half of it apart; one queue was deleted."""
    end = boot_ns()
    its = {"system": "nats", "cluster": "C1"}
    batches = []
    for i in range(9):
        for server in (1, 2):
            t = end - (9 - i) * 30 * S + (server - 1) * 15 * S
            here = {**its, "peer": peer_bytes(f"10.0.0.{server}", 4222)}
            batches.append(lag(t, server, f"q{server}", **here))
            if i < 4:
                batches.append(lag(t, 5, "deleted", **here))
    write(tmp_path, *batches)
    assert {row["queue"]: row["status"] for row in rows(tmp_path)} == {"q1": "ok", "q2": "ok", "deleted": "unknown"}


@pytest.mark.parametrize("case", ["a leader for two polls", "the agent was off"])
def test_the_interval_of_a_cluster_is_that_of_most_of_its_polls(tmp_path: Path, case: str) -> None:
    """Two servers every 30 s, half of it apart: one queue is in the polls of the second one only, of 15 s ago; one was
    deleted 90 s ago.
    """
    end, its = boot_ns(), {"system": "nats", "cluster": "C1"}
    peers = [peer_bytes(f"10.0.0.{server}", 4222) for server in (1, 2, 3)]
    batches = [lag(end - i * 30 * S, 1, "q1", **its, peer=peers[0]) for i in range(9)]
    batches += [lag(end - i * 30 * S - 15 * S, 1, "q2", **its, peer=peers[1]) for i in range(9)]
    batches += [lag(end - i * 30 * S, 1, "deleted", **its, peer=peers[0]) for i in range(3, 9)]
    if case == "a leader for two polls":
        batches += [lag(end - 100 * S - i * S, 1, "q1", **its, peer=peers[2]) for i in range(2)]
    else:
        batches += [lag(end - 900 * S + at * S, 1, f"q{1 + at}", **its, peer=peers[at]) for at in range(2)]
    write(tmp_path, *sorted(batches, key=lambda batch: int(batch.rows["t_ns"][0])))
    found = {row["queue"]: row["status"] for row in rows(tmp_path, "--since", "1h")}
    assert found == {"q1": "ok", "q2": "ok", "deleted": "unknown"}


@pytest.mark.parametrize("columns", [60, 80, 120, 200])
def test_one_line_each_that_fits(store: Path, columns: int) -> None:
    shown = on_terminal("queues", "--store", store, columns=columns, NO_COLOR="1")
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    kafka, *redis = (line for line in lines if re.match("kafka|redis", line))
    assert len(redis) == 4
    assert re.search(r"^kafka +(k +)?topic \(billin\S+ +66[01] ", kafka) and "stalled" in kafka  # 12 partitions
    if columns >= 80:
        assert all(word in lines[0].split() for word in ("system", "queue", "lag", "trend", "status", "why"))
        assert "▇█" in next(line for line in redis if "orders" in line)
    if columns >= 120:
        assert "1 of 12 partitions: nothing read" in kafka
        assert re.search(r"moved \(billing\) .* 1m10s .*draining", shown)
    assert re.search(r"^accept +\*:80 +2 +128", shown, re.MULTILINE)


def test_a_pipe_gets_every_column_of_the_table(store: Path) -> None:
    done = tickscope_text("queues", "--store", store)
    assert {"pending", "in/s", "out/s", "consumers", "drains", "why"} <= set(done.stdout.splitlines()[0].split())
    assert "lag grew from 179 to 189 in 10 s" in done.stdout


@pytest.mark.parametrize("columns", [80, 200])
def test_one_queue_in_detail(store: Path, columns: int) -> None:
    shown = on_terminal("queues", "show", "ord", "--store", store, columns=columns, NO_COLOR="1", TZ="UTC")
    assert max(map(len, shown.splitlines())) <= columns
    assert shown.startswith("redis orders (billing) of 10.0.0.1:6379\n")
    assert re.search(r"^ +150 ┤", shown, re.MULTILINE) and "⠉" in shown + "⠉"
    for words in (
        r"state +lagging, since \S+: lag grew",
        r"lag +179 messages",
        r"behind +1m30s",
        r"pending +3",
        r"consumers +2",
    ):
        assert re.search(words, shown), words
    assert re.search(r"changes of the state\n +\S+ +lagging: lag grew from 90 to 100", shown)
    assert "clients" not in shown
    topic = on_terminal("queues", "show", "topic", "--store", store, columns=columns, NO_COLOR="1")
    assert topic.count("topic/") == 12 and "1 of 12 partitions" in topic


def connection(table: str, t_ns: int, pid: int, server: int, sport: int, **more: Any) -> Batch:
    """Of a process on this host to a server (its last byte)."""
    ends = {
        "saddr": V4_MAPPED + bytes([10, 0, 0, 9]),
        "sport": sport,
        "role": 0,
        "peer": peer_bytes(f"10.0.0.{server}", 6379),
    }
    return make(table, 1, t_ns=t_ns, pid=pid, proc_start_ns=pid * S, comm="worker", **ends, **more)


def test_the_clients_of_a_queue_and_their_servers(tmp_path: Path) -> None:
    """Two servers: the worker of pid 7 switches between them and one connect fails; one of pid 8 was there before; the
    worker with the address is known by its connection. Process 9 talks to a server that is no broker.
    """
    now = boot_ns()
    two = {"system": "celery", "cluster": "10.0.0.2:6379", "peer": peer_bytes("10.0.0.2", 6379)}
    one = {"system": "celery", "workers": "w@a 7, 10.0.0.9:5008, x@b 9, and 3 more", "tasks": "mail.send 3"}
    ok, failed = (TABLES["tcp_connect"].code("result", name) for name in ("ok", "failed"))
    write(
        tmp_path,
        lag(now - 60 * S, 3, group="", **one),
        lag(now - 60 * S, 0, "other", group="", **two),
        *(connection("tcp_connect", now - t * S, 7, server, 5000 + t, result=ok) for t, server in TURNS),
        connection("tcp_connect", now - 25 * S, 7, 1, 5025, result=failed),
        connection("tcp_close", now - 26 * S, 7, 1, 5030),
        connection("tcp_rtt", now - 15 * S, 8, 1, 5008),
        connection("tcp_connect", now - 15 * S, 9, 3, 5009, result=ok),
    )
    doc = json.loads(tickscope_text("queues", "show", "orders", "--store", tmp_path, "-o", "json").stdout)
    names = ("pid", "worker", "server", "connects", "failed", "closed", "switches")
    assert [tuple(one[name] for name in names) for one in doc["clients"]] == [
        (7, "w@a", "10.0.0.1:6379", 4, 1, 1, 2),
        (8, "10.0.0.9:5008", "10.0.0.1:6379", 0, 0, 0, 0),
    ]
    shown = on_terminal("queues", "show", "orders", "--store", tmp_path, columns=120, NO_COLOR="1", TZ="UTC")
    assert "worker 7 (w@a)  10.0.0.1:6379  4 connects, 1 failed, 1 closed, 2 switches, last" in shown
    assert "worker 8 (10.0.0.9:5008)  10.0.0.1:6379  connected before, last" in shown
    assert re.search(r"next tasks +mail.send 3", shown)


def test_what_only_some_brokers_report(tmp_path: Path) -> None:
    now, partitions = boot_ns() - S, ((b"0", 9000.0), (b"1", 60.0))
    write(
        tmp_path,
        lag(now, 9, "tasks", delayed=3, redelivery_s=-4.0, held_idle=2, idle_holders=b"w1 2", priorities=b"0: 5, 3: 4"),
        *(
            lag(
                *(now, 9, "topic"),
                partition=partition,
                retention_left_s=left,
                holder=b"consumer-" + partition,
                group_state=b"stable",
                rebalances=2,
            )
            for partition, left in partitions
        ),
    )
    tasks, topic = (
        on_terminal("queues", "show", name, "--store", tmp_path, columns=100, NO_COLOR="1")
        for name in ("tasks", "topic")
    )
    for words in (
        r"delayed +3 wait",
        r"priorities +0: 5, 3: 4",
        r"redelivery +overdue by 4 ?s",
        r"idle 60 s +consumers with 2 pending: w1 2",
    ):
        assert re.search(words, tasks), words
    for words in (
        r"deleted in +1m00s: the first unread",
        r"group +stable, 2 rebalances",
        r"assigned +0: consumer-0, 1: consumer-1",
    ):
        assert re.search(words, topic), words


def test_a_log_is_plotted_in_bytes_and_what_is_overdue_has_no_negative_time(tmp_path: Path) -> None:
    end = boot_ns()
    rows = [lag(end - i * S, None, "wal", "standby", system="postgresql", lag_bytes=4096) for i in range(9, 0, -1)]
    rows.append(lag(end - S, 5, "topic", retention_left_s=-7200.0))
    write(tmp_path, *rows)
    wal, topic = (
        on_terminal("queues", "show", name, "--store", tmp_path, columns=100, NO_COLOR="1") for name in ("wal", "topic")
    )
    assert "lag in bytes, the largest of each" in wal and "messages" not in wal
    assert "lag in messages, the largest of each" in topic
    assert re.search(r"deleted +at any time: the first unread message", topic)


def test_duplicates_and_messages_out_of_order_of_a_queue(tmp_path: Path) -> None:
    """As its producers made them, in two partitions, and as its group consumed them; a consumer need not report more
    than the queue. Those of other queues, groups and servers do not count.
    """
    now = boot_ns()
    mine: dict[str, Any] = {"destination": "orders", "messages": 1009, "duplicates": 5, "out_of_order": 2}
    sample, consumer = (TABLES["message_order"].code("source", name) for name in ("sample", "consumer"))
    server = {"system": "redis", "cluster": "10.0.0.1:6379"}
    rows = [
        {**server, "source": sample, "partition": "0", "unread": 7},
        {**server, "source": sample, "partition": "1"},
        {"source": consumer, "pid": 7},
        {**server, "source": consumer, "consumer_group": "billing"},
        {**server, "source": consumer, "consumer_group": "other"},
        {**server, "source": consumer, "destination": "others"},
        {**server, "source": sample, "cluster": "10.0.0.2:6379"},
    ]
    batches = [make("message_order", 1, t_ns=now - S, **{**mine, **row}) for row in rows]
    write(tmp_path, lag(now - 60 * S, 3), lag(now - 60 * S, 0, "quiet"), *batches)
    doc = json.loads(tickscope_text("queues", "show", "orders", "--store", tmp_path, "-o", "json").stdout)
    sums = {"messages": 2018, "duplicates": 10, "out_of_order": 4}
    assert sorted(doc["order"], key=lambda one: one["source"]) == [
        {"source": "consumer", **sums, "unread": None},
        {"source": "sample", **sums, "unread": 7},
    ]
    shown = on_terminal("queues", "show", "orders", "--store", tmp_path, columns=80, NO_COLOR="1", TZ="UTC")
    assert re.search(r"consumed +2,018 messages, 10 duplicates, 4 out of order\n", shown)
    assert re.search(r"produced +2,018 messages, 10 duplicates, 4 out of order, 7 unread\n", shown)
    quiet = on_terminal("queues", "show", "quiet", "--store", tmp_path, columns=80, NO_COLOR="1", TZ="UTC")
    assert "duplicates" not in quiet


@pytest.mark.parametrize(
    ("others", "counted"),
    [
        ([], 1 + 10 + 100 + 1000 + 10000),
        ([("b", "10.0.0.2")], 1 + 10 + 100),  # a consumer's own name may mean this one
        ([("10.0.0.1:6379", "10.0.0.1")], 1 + 10 + 100 + 1000 + 10000),  # before the setting had a name
    ],
)
def test_messages_of_a_cluster_by_its_name_in_the_settings_and_by_its_address(
    others: list[tuple[str, str]], counted: int, tmp_path: Path
) -> None:
    now = boot_ns()
    names = ("shop", "10.0.0.1:6379", "", "10.0.0.2:6379", "the shop's")
    its = [(name, "consumer", 10**i) for i, name in enumerate(names)]
    reports = [
        make(
            "message_order",
            1,
            t_ns=now - S,
            destination="orders",
            cluster=name,
            source=TABLES["message_order"].code("source", source),
            messages=messages,
        )
        for name, source, messages in [*its, ("another", "sample", 5)]
    ]
    watched = [
        lag(now - age_s * S, 3, cluster=cluster, peer=peer_bytes(address, 6379))
        for age_s, (cluster, address) in zip((60, 90), [("shop", "10.0.0.1"), *others], strict=False)
    ]
    write(tmp_path, *watched, *reports)
    shown = tickscope_text("queues", "show", "orders", "--cluster", "shop", "--store", tmp_path, "-o", "json").stdout
    assert [one["messages"] for one in json.loads(shown)["order"]] == [counted]


#: Seconds ago, and the server.
TURNS = ((40, 1), (35, 1), (20, 2), (10, 1))


def test_one_queue_as_rows(store: Path) -> None:
    done = tickscope_text("queues", "show", "topic", "--store", store, "-o", "json")
    doc = json.loads(done.stdout)
    assert {row["lag"] for row in doc["rows"]} == {650, 661}
    assert len(doc["queues"]) == 12 and doc["changes"] == []
    csv = tickscope_text("queues", "show", "moved", "--store", store, "-o", "csv").stdout.splitlines()
    assert csv[0] == "from_ns,to_ns,lag,behind_s" and {line.split(",")[2] for line in csv[1:]} == {"7"}


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        (["show", "nosuch"], 3, "no queue nosuch was polled in that time"),
        (["show", "e"], 2, "4 queues match e"),
        (["show", "orders", "--group", "x"], 3, "there are: billing"),
        (["show", "orders", "--cluster", "x"], 3, "there are: 10.0.0.1:6379; k"),
        (["show"], 2, "Missing argument 'NAME'"),
        (["shw"], 2, "Did you mean show?"),
    ],
)
def test_mistakes(store: Path, argv: list[str], status: int, words: str) -> None:
    done = tickscope_text("queues", *argv, *(["--store", store] if argv[0] == "show" else []))
    assert done.returncode == status
    assert words in done.stderr
    assert not done.stdout


@pytest.mark.parametrize("fmt", ["table", "ndjson"])
def test_watch_repeats_until_it_is_interrupted(store: Path, fmt: str) -> None:
    argv = [sys.executable, "-m", "agent", "queues", "watch", "--every", "0.1s", "--store", str(store), "-o", fmt]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        rounds = 0
        for line in watch.stdout:
            rounds += '"orders"' in line or "orders (billing)" in line
            if rounds == 3:
                break
        watch.send_signal(signal.SIGINT)
        watch.stdout.read()
    assert watch.returncode == 130


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0s"), (0.0004, "0s"), (0.053, "53ms"), (12.34, "12.3s"), (59.96, "1m00s"), (250, "4m10s")),
        *((7500, "2h05m"), (86400 * 3.2, "3d04h"), (86400 * 400, "400d"), (-250, "-4m10s"), (float("nan"), "-")),
        (float("inf"), "-"),
    ],
)
def test_times_in_columns(seconds: float, text: str) -> None:
    assert brief(seconds) == text


@pytest.mark.parametrize(
    ("values", "bars"),
    [([], "-"), ([None, None], "-"), ([0, 0], "▁▁"), ([0, None, 7, 1], "▁ █▂"), ([5, 0, 1], "▆▁▂"), ([1, 1000], "▂█")],
)
def test_bars(values: list[int | None], bars: str) -> None:
    assert queues_text.sparkline(values) == bars
