"""etcd against real clusters of one and three members. Counts are prime, so that no doubling or halving goes unseen.

What a copy lacks is exact at the instant of the poll: it is compared while nothing moves, with what the script wrote.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isnan
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest

from agent.queues.brokers.etcd import BROKER, EtcdUrl
from agent.queues.judged import Judged
from tests.patience import until
from tests.releases import program, unpacked
from tests.servers.etcd import Etcd, EtcdNode, Watcher, ask, end_of, text
from tests.servers.polled import failed, poll, row_of, until_row, watched
from tests.servers.test_rabbitmq import Odd, _once

S = 10**9


@pytest.fixture(scope="module", params=["own", "trixie"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """This host's release (Debian 12: 3.4), and Debian 13's (3.5)."""
    if request.param == "own":
        return ["etcd"]
    return program(unpacked(f"{request.param}-etcd", request.param, ("etcd-server", "libc6")), "usr/bin/etcd")


@pytest.fixture
def two(tmp_path: Path, command: list[str]) -> Iterator[tuple[EtcdNode, EtcdNode]]:
    """A member of a cluster, and one of another cluster."""
    clusters = [Etcd(tmp_path / name, 1, command, name=name) for name in ("west", "east")]
    yield clusters[0].nodes[0], clusters[1].nodes[0]
    for one in clusters:
        one.end()


@pytest.fixture
def three(tmp_path: Path, command: list[str]) -> Iterator[Etcd]:
    # Without a majority, a leader stays one for this long.
    cluster = Etcd(tmp_path / "three", 3, command, ("--heartbeat-interval", "100", "--election-timeout", "3000"))
    yield cluster
    cluster.end()


def known(row: Any) -> bool:
    return bool(row["lag_messages"] >= 0 and not row["inexact_reason"].startswith(b"as of"))


def test_keys_that_a_copy_lacks(two: tuple[EtcdNode, EtcdNode]) -> None:
    source, copy = two
    for number in range(1237):  # more than one page
        source.put(f"/shop/{number}", str(number))
    for number in range(1100):
        copy.put(f"/shop/{number}", str(number))
    source.put("/other", "is not compared")
    url = f"http://127.0.0.1:{source.port}?prefix=/shop/&copy=http://127.0.0.1:{copy.port}"
    with watched(BROKER, url) as queue:

        def behind() -> Any:
            """The row of a poll that began now."""
            asked_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            return until_row(queue, "/shop/", "*", lambda row: known(row) and row["t_ns"] - row["poll_ns"] > asked_ns)

        row = behind()
        assert (row["lag_messages"], row["exact"]) == (137, 1)
        assert b"age: " in row["inexact_reason"] and b"or more" in row["inexact_reason"]
        assert row["consumer_group"] == f"copy 127.0.0.1:{copy.port}".encode()
        assert row["peer"].tobytes()[16:] == source.port.to_bytes(2, "little")
        for number in range(1100, 1237):
            copy.put(f"/shop/{number}", str(number))
        row = behind()
        assert (row["lag_messages"], row["exact"], row["lag_s"]) == (0, 1, 0)
        before = time.monotonic()
        for number in range(0, 505, 5):
            source.put(f"/shop/{number}", "changed")
        after = time.monotonic()
        assert behind()["lag_messages"] == 101
        for number in range(0, 185, 5):
            copy.put(f"/shop/{number}", "changed")
        row = behind()
        assert (row["lag_messages"], row["exact"]) == (64, 1)
        polled = time.monotonic()
        least = polled - row["poll_ns"] / 1e9 - after
        if isnan(row["lag_s"]):  # the polls were far apart
            assert b"age: " in row["inexact_reason"]
            assert row["oldest_undelivered_s"] <= polled - before + 0.01
        else:
            assert least - 0.01 <= row["lag_s"] + row["lag_error_s"]
            assert row["lag_s"] - row["lag_error_s"] <= polled - before + 0.01
        for number in range(3, 23, 4):
            source.delete(f"/shop/{number}")
        assert behind()["lag_messages"] == 69
        for number in range(3, 23, 4):
            copy.delete(f"/shop/{number}")
        for number in range(185, 505, 5):  # back to what the copy has
            source.put(f"/shop/{number}", str(number))
        copy.put("/shop/extra", "is of the copy alone")
        row = behind()
        assert (row["lag_messages"], row["exact"]) == (0, 1)
        assert row["inexact_reason"] == b"keys that only the copy has: 1"
        source.put("/shop/a", "1")
        revision = int(source.status()["header"]["revision"])
        source.ask("kv/compaction", {"revision": revision})
        assert behind()["lag_messages"] == 1
        copy.pause()
        row = until_row(queue, "/shop/", "*", lambda row: row["lag_messages"] < 0)
        assert row["status"] == b"unknown"
        assert row["reason"] == f"not compared: 127.0.0.1:{copy.port}: no answer in time".encode()
        assert row_of(poll(queue), "raft", "*west0*")["status"] == b"ok"
        copy.go_on()
        assert behind()["lag_messages"] == 1
        copy.put("/shop/a", "1")
        assert behind()["lag_messages"] == 0


def test_a_copy_under_another_prefix_that_is_never_right(two: tuple[EtcdNode, EtcdNode]) -> None:
    source, copy = two
    url = f"http://127.0.0.1:{source.port}?prefix=a/&copy=" + quote(f"http://127.0.0.1:{copy.port}/b/")
    with watched(BROKER, url) as queue:
        until_row(queue, "a/", "*/b/*", lambda row: row["lag_messages"] == 0)
        source.put("a/1", "x")
        copy.put("/b/1", "y")
        copy.put("a/1", "x")
        row = until_row(queue, "a/", "*/b/*", lambda row: row["lag_messages"] == 1)
        row = until_row(queue, "a/", "*/b/*", lambda row: row["status"] == b"stalled")
        assert b"nothing read for" in row["reason"]
        copy.put("/b/1", "x")
        until_row(queue, "a/", "*/b/*", lambda row: row["lag_messages"] == 0 and row["status"] == b"ok")


def test_members_their_leader_and_its_change(three: Etcd) -> None:
    with watched(BROKER, three.url) as queue:
        rows = poll(queue)
        leader = three.leader()
        assert {(row["consumer_group"].decode(), row["server_role"]) for row in rows} == {
            (node.name, b"primary" if node is leader else b"replica") for node in three.nodes
        }
        for node in three.nodes:
            for _ in range(19):
                node.put("a", "b")
        for node in three.nodes:
            row = until_row(queue, "raft", f"*{node.name}*", lambda row: row["lag_messages"] == 0 and row["exact"])
            assert row["cluster"] == f"{int(leader.status()['header']['cluster_id']):x}".encode()
            assert row["peer"].tobytes()[16:] == node.port.to_bytes(2, "little")
            assert row_of(poll(queue), "proposals", f"*{node.name}*")["lag_messages"] == 0
        follower = next(node for node in three.nodes if node is not leader)
        follower.pause()
        rows = poll(queue)
        assert failed(row_of(rows, "raft", f"*{follower.name}*")) == "no_answer"
        assert row_of(rows, "raft", f"*{leader.name}*")["status"] == b"ok"
        for _ in range(503):
            leader.put("a", "c")
        follower.go_on()
        until_row(
            queue, "raft", f"*{follower.name}*", lambda row: row["status"] != b"down" and row["lag_messages"] == 0
        )
        leader.end()
        row = until_row(
            queue, "raft", f"*{follower.name}*", lambda row: row["reason"].startswith(b"the leader changed")
        )
        assert failed(row_of(poll(queue), "raft", f"*{leader.name}*")) == "refused"
        leader.start(three.command)
        until_row(
            queue, "raft", f"*{leader.name}*", lambda row: row["status"] == b"ok" and row["server_role"] == b"replica"
        )
        number = follower.status()["header"]["member_id"]
        follower.end()
        with watched(BROKER, three.url) as later:  # it has its name, though it never answered
            until_row(later, "raft", f"*{follower.name}*", lambda row: failed(row) == "refused")
        three.remove(number, leader)
        until_row(queue, "raft", f"*{follower.name}*", lambda row: row["status"] == b"gone")


def test_proposals_wait_for_a_majority_and_a_member_without_one_is_cut_off(three: Etcd) -> None:
    leader = three.leader()
    others = [node for node in three.nodes if node is not leader]
    with watched(BROKER, three.url) as queue:
        until_row(queue, "raft", f"*{leader.name}*", lambda row: row["status"] == b"ok")
        for node in others:
            node.pause()

        def put() -> None:
            with suppress(AssertionError, OSError):  # it succeeds if the majority is back in time
                ask(leader.port, "kv/put", {"key": text("k"), "value": ""}, timeout_s=10)

        writers = [threading.Thread(target=put) for _ in range(7)]
        for one in writers:
            one.start()
        row = until_row(queue, "proposals", f"*{leader.name}*", lambda row: row["lag_messages"] == 7)
        assert row["exact"]
        row = until_row(queue, "raft", f"*{leader.name}*", lambda row: row["server_role"] == b"cut off", 60)
        assert (row["reason"], row["lag_messages"] < 0) == (b"no leader", True)
        for node in others:
            node.go_on()
        for one in writers:
            one.join()
        until_row(queue, "raft", f"*{leader.name}*", lambda row: row["lag_messages"] == 0, 60)
        until_row(queue, "proposals", f"*{leader.name}*", lambda row: row["lag_messages"] == 0)


def test_events_that_wait_for_a_watcher_that_does_not_read(two: tuple[EtcdNode, EtcdNode]) -> None:
    node, _ = two
    with watched(BROKER, f"http://127.0.0.1:{node.port}") as queue:
        watcher = Watcher(node.port, "/w/")
        row = until_row(queue, "watchers", "*", lambda row: row["consumers"] == 1)
        assert (row["lag_messages"], row["exact"]) == (0, 1)
        number = 0
        while until_row(queue, "watchers", "*", lambda row: row["lag_messages"] >= 0)["exact"]:
            for _ in range(50):
                node.put(f"/w/{number % 7}", b"x" * 60_000)
                number += 1
            assert number < 10_000
        row = until_row(queue, "watchers", "*", lambda row: row["lag_messages"] > 0)
        assert row["lag_messages"] <= number
        assert row["inexact_reason"] == b"lower bound: 1 slow watcher lacks more"
        watcher.close()
        until_row(queue, "watchers", "*", lambda row: row["lag_messages"] == 0 and row["exact"])


def test_a_full_database_refuses_writes(tmp_path: Path, command: list[str]) -> None:
    cluster = Etcd(tmp_path / "full", 1, command, ("--quota-backend-bytes", str(4 << 20)))
    node = cluster.nodes[0]
    try:
        with watched(BROKER, cluster.url) as queue:
            until_row(queue, "raft", "*", lambda row: row["errors"] == b"")
            with pytest.raises(AssertionError):
                while True:
                    node.put("k", b"x" * 500_000)
            row = until_row(queue, "raft", "*", lambda row: row["errors"] == b"NOSPACE 1")
            assert row["reason"] == b"alarm NOSPACE: writes are refused"
    finally:
        cluster.end()


def boot_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def leases(queue: Judged) -> dict[str, dict[str, Any]]:
    """Timers after a poll, by their objects."""
    queue.poll()
    return {row["object"].decode(): dict(row) for row in queue.timers() if row["timers"]}  # type: ignore[attr-defined]


def test_leases_end_when_they_were_granted_for(two: tuple[EtcdNode, EtcdNode], monkeypatch: pytest.MonkeyPatch) -> None:
    node, _ = two
    monkeypatch.setattr("agent.queues.etcd_leases.MAX_LEASES", 7)
    monkeypatch.setattr("agent.queues.etcd_leases.ASKED", 3)
    due: dict[str, tuple[int, int]] = {}  # when it ends, CLOCK_BOOTTIME: bounds

    def see(name: str, ttl_s: int, what: Callable[[], Any]) -> Any:
        from_ns = boot_ns()
        answer = what()
        due[name] = from_ns + ttl_s * S, boot_ns() + ttl_s * S
        return answer

    def grant(number: int, ttl_s: int) -> str:
        name = f"{number:x}"
        see(name, ttl_s, lambda: node.ask("lease/grant", {"ID": str(number), "TTL": str(ttl_s)}))
        return name

    def check(row: dict[str, Any], polled_ns: int) -> None:
        """The lower bound of what etcd rounds to whole seconds."""
        least, most = due[row["object"].decode().partition(" ")[0]]
        assert (row["destination"], row["kind"]) == (b"leases", "lease")
        assert row["clock"] == ("both" if row["version"].startswith("3.4.") else "monotonic"), row
        assert least - 2 * S - (boot_ns() - polled_ns) <= row["was_due_ns"] <= most, (row, least, most)
        assert (row["due_wall_ns"] is None) == (row["clock"] == "monotonic")
        if row["due_wall_ns"] is not None:
            assert abs(row["due_wall_ns"] - row["was_due_ns"] - (time.time_ns() - boot_ns())) < S // 100

    with watched(BROKER, f"http://127.0.0.1:{node.port}") as queue:
        assert leases(queue) == {}
        held = grant(0x7FFF_FFFF_FFFF_FFFB, 3600)
        node.put("/locks/a", lease=str(int(held, 16)))
        others = [grant(number, 3600 + 10 * number) for number in range(1, 11)]
        began_ns = boot_ns()
        until(lambda: sum(row["was_due_ns"] is not None for row in leases(queue).values()) >= 7, 60)
        found = leases(queue)
        more = found.pop("")
        assert more["timers"] == 4 and more["consequence"].startswith("only the 7 leases")
        assert found.keys() == {f"{held} /locks/a", *others[:6]}  # those that end first
        for row in found.values():
            check(row, began_ns)
        renewed = {"ID": str(int(others[0], 16))}
        node.ask("lease/revoke", {"ID": str(int(held, 16))})
        see(others[0], 3610, lambda: node.ask("lease/keepalive", renewed))
        for name in others[1:]:
            node.ask("lease/revoke", {"ID": str(int(name, 16))})
        until(lambda: leases(queue).keys() == {others[0]})
        check(leases(queue)[others[0]], boot_ns())
        node.ask("lease/revoke", renewed)
        assert leases(queue) == {}


def test_without_the_right_to_read_keys_leases_have_no_keys(two: tuple[EtcdNode, EtcdNode]) -> None:
    node, _ = two
    node.ask("auth/user/add", {"name": "root", "password": "rootpw"})
    node.ask("auth/role/add", {"name": "root"})
    node.ask("auth/user/grant", {"user": "root", "role": "root"})
    node.ask("lease/grant", {"ID": "17", "TTL": "3600"})
    node.put("/locks/a", lease="17")
    node.ask("auth/enable")
    refused = not node.status()["version"].startswith("3.4.23")  # the fix of CVE-2023-32082
    with watched(BROKER, f"http://127.0.0.1:{node.port}") as queue:
        until(lambda: leases(queue).keys() == {"11" if refused else "11 /locks/a"})
        until(lambda: next(iter(leases(queue).values()))["was_due_ns"] is not None)
        assert row_of(poll(queue), "raft")["status"] == b"ok"
    with watched(BROKER, f"http://root:rootpw@127.0.0.1:{node.port}") as queue:
        until(lambda: leases(queue).keys() == {"11 /locks/a"})


@pytest.mark.parametrize(
    ("what", "answer", "why"),
    [
        ("leases", b"{}]", "not that of etcd's gateway"),
        ("leases", b'{"leases": [{"ID": "-1"}]}', "not that of etcd's gateway"),
        ("leases", b'{"leases": [' + b'{"ID": "1"},' * 100_000 + b'{"ID": "1"}]}', "more leases than are read"),
        ("timetolive", b'{"TTL": "1e3", "grantedTTL": "60"}', "not that of etcd's gateway"),
        ("leases", None, "permission denied"),
    ],
)
def test_leases_that_cannot_be_read_cost_only_their_rows(
    tmp_path: Path, what: str, answer: bytes | None, why: str
) -> None:
    """A real member behind a server that answers one request in its own way."""
    cluster = Etcd(tmp_path / "etcd")
    node = cluster.nodes[0]
    node.ask("lease/grant", {"ID": "17", "TTL": "3600"})

    class Between(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == f"/v3/lease/{what}":
                refusal = json.dumps({"error": "etcdserver: permission denied", "code": 7}).encode()
                self._answer(403 if answer is None else 200, refusal if answer is None else answer)
            else:
                self._ask(Request(f"http://127.0.0.1:{node.port}{self.path}", sent))

        def do_GET(self) -> None:
            self._ask(Request(f"http://127.0.0.1:{node.port}{self.path}"))

        def _ask(self, request: Request) -> None:
            with urlopen(request) as answered:
                self._answer(200, answered.read())

        def _answer(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    between = ThreadingHTTPServer(("127.0.0.1", 0), Between)
    threading.Thread(target=between.serve_forever, daemon=True).start()
    try:
        with watched(BROKER, f"http://127.0.0.1:{between.server_port}") as queue:
            until_row(queue, "raft", "*", lambda row: row["status"] == b"ok" and row["lag_messages"] == 0)
            until_row(queue, "proposals", "*", lambda row: row["lag_messages"] == 0)
            until(lambda: why in leases(queue).get("", {}).get("consequence", ""))
            found = leases(queue)
            assert len(found) == 1 and found[""]["was_due_ns"] is None
    finally:
        between.shutdown()
        between.server_close()
        cluster.end()


def test_a_compaction_that_slow_watchers_may_not_survive_is_named(two: tuple[EtcdNode, EtcdNode]) -> None:
    node, _ = two
    with watched(BROKER, f"http://127.0.0.1:{node.port}") as queue:
        watcher = Watcher(node.port, "/w/")
        number = 0
        while until_row(queue, "watchers", "*", lambda row: row["lag_messages"] >= 0)["exact"]:
            for _ in range(50):
                node.put("/w/a", b"x" * 60_000)
                number += 1
            assert number < 10_000
        revision = int(node.status()["header"]["revision"])
        assert b"compacted" not in row_of(poll(queue), "watchers")["reason"]
        node.ask("kv/compaction", {"revision": str(revision)})
        row = until_row(queue, "watchers", "*", lambda row: b"compacted" in row["reason"])
        assert row["reason"].startswith(b"revision %d was compacted" % revision)
        assert b"1 watcher" in row["reason"]
        watcher.close()


def test_least_rights_and_wrong_passwords(
    two: tuple[EtcdNode, EtcdNode], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in two:
        for name, password in (("root", "rootpw"), ("tickscope", "p:w")):
            node.ask("auth/user/add", {"name": name, "password": password})
        node.ask("auth/role/add", {"name": "copies"})
        permission = {"permType": "READ", "key": text("/a/"), "range_end": end_of("/a/")}
        node.ask("auth/role/grant", {"name": "copies", "perm": permission})
        node.ask("auth/role/add", {"name": "root"})
        node.ask("auth/user/grant", {"user": "root", "role": "root"})
        node.ask("auth/user/grant", {"user": "tickscope", "role": "copies"})
        node.put("/a/1", "x")
        node.ask("auth/enable")
    first, second = two
    (tmp_path / "password").write_text("p:w\n")
    monkeypatch.setenv("TICKSCOPE_ETCD_WRONG", "wrong")
    url = f"http://127.0.0.1:{first.port}?prefix=/a/,/b/&copy=http://127.0.0.1:{second.port}"
    with watched(BROKER, {"url": url, "user": "tickscope", "password_file": str(tmp_path / "password")}) as queue:
        until_row(queue, "/a/", "*", lambda row: row["lag_messages"] == 0)
        row = until_row(queue, "/b/", "*", lambda row: b"permission denied" in row["reason"])
        assert row["status"] == b"unknown" and row["lag_messages"] < 0
    with watched(BROKER, url) as queue:
        row = until_row(queue, "/a/", "*", lambda row: b"user name is empty" in row["reason"])
        assert row_of(poll(queue), "raft")["status"] == b"ok"
    with watched(BROKER, {"url": url, "user": "tickscope", "password_variable": "TICKSCOPE_ETCD_WRONG"}) as queue:
        row = until_row(queue, "/a/", "*", lambda row: b"authentication failed" in row["reason"])
        assert row["status"] == b"unknown" and b"wrong" not in row["reason"]
        assert row_of(poll(queue), "raft")["status"] == b"ok"


def test_a_wrong_certificate(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        files = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", "/CN=x", "-addext"]
        subprocess.run([*command, *files, "subjectAltName=IP:127.0.0.1"], cwd=tmp_path, check=True, capture_output=True)
    files = ["--cert-file", str(tmp_path / "ours.pem"), "--key-file", str(tmp_path / "ours.key")]
    files += ["--client-cert-auth", "--trusted-ca-file", str(tmp_path / "ours.pem")]
    cluster = Etcd(tmp_path / "tls", 1, more=files)
    ours, none = {"certificate_file": f"{tmp_path}/ours.pem"}, f"{tmp_path}/none.key"
    try:
        for authority, own, reason in (
            ("ours", {**ours, "key_file": f"{tmp_path}/ours.key"}, ""),
            ("theirs", {**ours, "key_file": f"{tmp_path}/ours.key"}, "certificate verify failed"),
            ("ours", {}, "a client certificate"),  # etcd says so, or ends the connection, whichever comes first
            ("ours", {**ours, "key_file": none}, f"no such file or directory: {tmp_path}/ours.pem, {none}"),
        ):
            section = {"url": cluster.url.replace("http", "https"), "ca_file": f"{tmp_path}/{authority}.pem", **own}
            with watched(BROKER, section) as queue:
                row = until_row(
                    queue,
                    "raft",
                    "*",
                    lambda row: failed(row) not in ("refused", "no_answer") and row["status"] != b"unknown",
                )
                assert row["status"] == (b"down" if reason else b"ok"), row["reason"]
                assert reason[:80] in row["reason"].decode().lower()
    finally:
        cluster.end()


@pytest.mark.parametrize(
    ("say", "failure", "words"),
    [
        (_once(b'HTTP/1.1 403 Forbidden\r\nContent-Length: 18\r\n\r\n{"error":"refused"}'[:-1]), "login", "HTTP 403"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>"), "other", "JSON gateway"),
        (_once(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnull"), "other", "JSON gateway"),
        (_once(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone"), "other", "set enable-grpc-gateway: true"),
    ],
)
def test_a_server_that_answers_badly_is_down_with_the_reason(
    say: Callable[[Any], None], failure: str, words: str
) -> None:
    """What is odd as HTTP, slow, endless or too large: test_rabbitmq.py, by the same client."""
    server = Odd(say)
    with watched(BROKER, f"http://127.0.0.1:{server.port}") as queue:
        (row,) = poll(queue)
    server.close()
    assert (row["status"], failed(row)) == (b"down", failure), row["reason"]
    assert words in row["reason"].decode()


def test_servers_as_texts() -> None:
    found = EtcdUrl.parse("https://u:p%40@a,b:3,[::1]:4?prefix=/x/&copy=http://c/z/")
    assert (found.server, found.tls, found.user, found.password) == ("a:2379", True, "u", "p@")
    assert [one.server for one in found.others] == ["b:3", "[::1]:4"] and all(one.tls for one in found.others)
    assert found.prefix == ("/x/",)
    assert found.copy is not None and (found.copy.url.server, found.copy.prefix) == ("c:2379", "/z/")
