"""What time daemons believe, against real chronyd and ntpd that cannot touch the clock, over a wire of known delay in
namespaces of our own.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.batch import Batch
from agent.clock.daemons.daemon_source import TimeDaemons
from agent.clock.daemons.settings import NtpSettings
from agent.common.clocks import boot_ns
from agent.correlate.correlator import Correlator
from agent.tables import TABLES
from tests.cable import Cable
from tests.lab.ntpserver import NtpServer
from tests.lab.timedaemons import Daemon, chronyc, chronyd, ntpd, ntpq
from tests.patience import until

DELAY_S = 0.003
TABLE = TABLES["clock_daemon"]
SERVER = "local stratum 5\nallow\ncmdport 0"
CLIENT = f"server {Cable.RIGHT} minpoll 0 maxpoll 0 iburst\nport 0"
NOBODY = NtpSettings(daemon_interval_s=0.2, interval_s=0.2)


def decoded(row: np.void) -> dict[str, Any]:
    """A row as `query -o json` shows it."""
    out: dict[str, Any] = {}
    for column in TABLE.columns:
        value = row[column.name]
        null = value == column.null
        out[column.name] = (
            None
            if null
            else (
                column.names[value] if column.kind == "enum" else value.decode() if column.kind == "str" else int(value)
            )
        )
    return out


class Node:
    """A source in the wire's left namespace, drained by the test."""

    def __init__(self, wire: Cable, config: NtpSettings = NOBODY, running: Callable[[], dict[str, int]] = dict) -> None:
        self.wire = wire
        self.source = TimeDaemons(config, lambda wall: wall - time.time_ns() + boot_ns(), running)
        self.batches: list[Batch] = []

    def rows(self, daemon: str, kind: str, enough: int = 1, limit_s: float = 20) -> list[dict[str, Any]]:
        """Drains until there are enough new rows of that sort; returns all that came, oldest first."""
        found: list[dict[str, Any]] = []

        def turn() -> None:
            for batch in self.source.drain(boot_ns()):
                self.batches.append(batch)
                found.extend(r for r in map(decoded, batch.rows) if (r["daemon"], r["kind"]) == (daemon, kind))

        with self.wire.left.entered():
            until(lambda: len(found) >= enough, limit_s, 0.005, why=self.source.state, turn=turn)
        return found


@pytest.fixture
def wire(own_clock: None) -> Iterator[Cable]:
    with Cable(delay_s=DELAY_S) as made:
        yield made


@pytest.fixture
def daemons(wire: Cable, tmp_path: Path) -> Iterator[Callable[..., Daemon]]:
    """daemons(start, *args): a daemon that ends with the test."""
    running: list[Daemon] = []

    def begin(start: Callable[..., Daemon], *args: Any) -> Daemon:
        running.append(start(*args))
        return running[-1]

    yield begin
    for one in running:
        one.stop()


@pytest.fixture
def chrony(wire: Cable, daemons: Callable[..., Daemon], tmp_path: Path) -> Daemon:
    """A chronyd synchronised to another one across the wire."""
    daemons(chronyd, wire.right, tmp_path, "server", SERVER)
    client = daemons(chronyd, wire.left, tmp_path, "client", CLIENT)
    until(lambda: client.process.poll() is None and (tmp_path / "client.pid").exists())
    until(lambda: chronyc(wire.left, "sources")[0][1] == "*")
    return client


def ppb(text: str) -> int:
    return round(float(text) * 1000)


def nano(text: str) -> int:
    return round(float(text) * 1e9)


def test_tracking_is_what_chronyc_prints(wire: Cable, chrony: Daemon) -> None:
    node = Node(wire)
    for _ in range(50):  # between two equal reports of chronyc nothing was updated
        (before,), row, (after,) = (
            chronyc(wire.left, "tracking"),
            node.rows("chrony", "system")[-1],
            chronyc(wire.left, "tracking"),
        )
        fixed = [i for i in range(14) if i not in (4, 11)]
        if [before[i] for i in fixed] == [after[i] for i in fixed]:
            break
    else:
        pytest.fail("chronyd updates faster than it can be asked")
    assert row["state"] == "synchronised"
    assert row["leap"] == "none"
    assert before[13] == "Normal"
    assert (
        (row["ref_id"], row["source"], row["stratum"])
        == (before[0], before[1], int(before[2]))
        == ("0A4D0002", Cable.RIGHT, 6)
    )
    printed = {
        "last_offset_ns": -nano(before[5]),
        "rms_offset_ns": nano(before[6]),
        "freq_ppb": -ppb(before[7]),
        "residual_freq_ppb": -ppb(before[8]),
        "skew_ppb": ppb(before[9]),
        "root_delay_ns": nano(before[10]),
    }
    assert {name: row[name] for name in printed} == printed
    assert abs(row["update_interval_ns"] - nano(before[12])) <= 50_000_000
    lowest, highest = sorted((nano(before[4]), nano(after[4])))
    assert lowest - 1 <= row["offset_ns"] <= highest + 1
    assert nano(before[11]) - 1 <= row["root_dispersion_ns"] <= nano(after[11]) + 1
    assert row["distance_ns"] >= row["root_delay_ns"] // 2 + row["root_dispersion_ns"]
    assert abs(row["last_update_ns"] - (float(before[3]) - time.time() + boot_ns() / 1e9) * 1e9) < 1e6
    assert row["root_delay_ns"] >= 2 * DELAY_S * 1e9


def test_sources_are_what_chronyc_prints(wire: Cable, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    daemons(chronyd, wire.right, tmp_path, "server", SERVER)
    daemons(
        chronyd,
        wire.left,
        tmp_path,
        "client",
        f"{CLIENT}\nserver {Cable.RIGHT6} minpoll 0 maxpoll 0 iburst\nserver {Cable.NOBODY} minpoll 0 maxpoll 0",
    )
    until((tmp_path / "client.pid").exists)
    until(
        lambda: (
            {line[1] for line in chronyc(wire.left, "sources")} >= {"*", "?"}
            and chronyc(wire.left, "sources")[1][1] in "*+-"
        )
    )
    node, states = (
        Node(wire),
        {"*": "selected", "+": "combined", "-": "excluded", "?": "unusable", "x": "falseticker", "~": "unstable"},
    )
    for _ in range(50):
        before, rows, after = (
            chronyc(wire.left, "sources"),
            node.rows("chrony", "source", 3)[-3:],
            chronyc(wire.left, "sources"),
        )
        if before == after:
            break
    else:
        pytest.fail("chronyd updates faster than it can be asked")
    assert [r["source"] for r in rows] == [line[2] for line in before] == [Cable.RIGHT, Cable.RIGHT6, Cable.NOBODY]
    for row, (_, state, _, stratum, poll, reach, since, latest, _, error) in zip(rows, before, strict=True):
        assert (row["state"], row["stratum"], row["poll_s"], row["reach"]) == (
            states[state],
            int(stratum),
            1 << int(poll),
            int(reach, 8),
        )
        if not int(reach, 8):
            assert (row["offset_ns"], row["last_update_ns"]) == (None, None)
        else:
            assert row["offset_ns"] == -nano(latest)
            assert abs(row["distance_ns"] - nano(error)) <= 1000  # besides, what reading the clocks here adds
            assert row["t_ns"] - row["last_update_ns"] == int(since) * 10**9


def test_a_daemon_without_sources_is_unsynchronised(
    wire: Cable, daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemons(chronyd, wire.left, tmp_path, "alone", "port 0")
    until((tmp_path / "alone.pid").exists)
    row = Node(wire).rows("chrony", "system")[0]
    assert (row["state"], row["offset_ns"], row["distance_ns"], row["leap"]) == (
        "unsynchronised",
        None,
        None,
        "unsynchronised",
    )
    assert "no source" in row["reason"]


def test_nobody_there_is_no_row_and_no_failure(wire: Cable) -> None:
    node = Node(wire)
    with wire.left.entered():
        end = time.monotonic() + 1
        while time.monotonic() < end:
            assert list(node.source.drain(boot_ns())) == []
            time.sleep(0.01)
    assert (node.source.failures(), node.source.state()) == ({}, [])


def test_a_daemon_with_a_closed_port_reports_what_to_set(
    wire: Cable, daemons: Callable[..., Daemon], tmp_path: Path
) -> None:
    pid = daemons(chronyd, wire.left, tmp_path, "closed", "port 0\ncmdport 0").process.pid
    node = Node(wire, running=lambda: {"chrony": pid})
    row = node.rows("chrony", "system")[0]
    assert row["state"] == "refused"
    assert f"pid {pid}" in row["reason"]
    assert "cmdport" in row["reason"]
    assert node.source.failures() == {"chrony 127.0.0.1:323": row["reason"]}


def test_a_daemon_that_ends_is_reported(wire: Cable, chrony: Daemon) -> None:
    node = Node(wire)
    assert node.rows("chrony", "system")[0]["state"] == "synchronised"
    chrony.stop()
    until(lambda: node.rows("chrony", "system")[-1]["state"] == "refused")


def test_sntp_finds_the_true_offset_within_its_bound(wire: Cable, chrony: Daemon) -> None:
    rows = Node(wire, NtpSettings(servers=(Cable.RIGHT,), interval_s=0.2, chrony="")).rows("sntp", "source", 23)
    for row in rows:  # one host, one clock: the true offset is zero
        assert (row["state"], row["stratum"], row["leap"]) == ("synchronised", 5, "none")
        assert abs(row["offset_ns"]) <= row["distance_ns"]
        assert 2 * DELAY_S * 1e9 <= row["delay_ns"] <= 2 * row["distance_ns"]


def test_sntp_over_ipv6_and_by_name(wire: Cable, chrony: Daemon) -> None:
    config = NtpSettings(servers=(f"[{Cable.RIGHT6}]", "localhost:9"), interval_s=0.2, chrony="")
    node = Node(wire, config)
    rows = node.rows("sntp", "source", 8)
    assert {r["state"] for r in rows if r["source"] == f"[{Cable.RIGHT6}]"} == {"synchronised"}
    assert {(r["state"], r["reason"]) for r in rows if r["source"] == "localhost:9"} == {
        ("refused", "no process listens there")
    }


def test_a_server_that_has_no_address_is_reported(wire: Cable) -> None:
    node = Node(wire, NtpSettings(servers=("nosuch.invalid",), interval_s=0.2))
    (row,) = node.rows("sntp", "source")[:1]
    assert (row["state"], row["source"], row["offset_ns"]) == ("error", "nosuch.invalid", None)
    assert row["reason"].startswith("cannot be found: ")
    assert list(node.source.failures()) == ["sntp nosuch.invalid"]


def test_nothing_is_sent_to_servers_unless_they_are_configured(wire: Cable, chrony: Daemon) -> None:
    with wire.right.entered():
        server = NtpServer((Cable.RIGHT, 1123))
    Node(wire).rows("chrony", "system", 5)
    assert server.asked == []
    Node(wire, NtpSettings(servers=(server.where,), interval_s=0.2)).rows("sntp", "source")
    assert len(server.asked) >= 1
    server.close()


def test_honest_sources_agree_and_a_liar_is_a_finding(wire: Cable, chrony: Daemon) -> None:
    with wire.right.entered():
        server = NtpServer((Cable.RIGHT, 1123))
    node = Node(wire, NtpSettings(servers=(server.where,), interval_s=0.2, daemon_interval_s=0.2))
    node.rows("chrony", "system", 41)
    checks = [decoded(r) for b in node.batches for r in b.rows if r["kind"] == TABLE.code("kind", "check")]
    assert [(c["source"], c["state"]) for c in checks] == [(c["source"], "agree") for c in checks]
    assert sorted(c["source"] for c in checks) == [server.where, "raw"]
    server.ahead_ns = 101_000_000
    lie = node.rows("chrony", "check", 11)  # at least two seconds: the correlator takes a second as one
    assert {(c["source"], c["state"]) for c in lie} == {(server.where, "disagree")}
    for check in lie:  # our clock is right, so chrony's UTC is earlier than the liar's
        assert abs(check["offset_ns"] + 101_000_000) <= check["distance_ns"] < 101_000_000
    server.ahead_ns = 0
    until(lambda: node.rows("chrony", "check")[-1]["state"] == "agree")
    server.close()
    correlator, findings = Correlator(), []
    for batch in node.batches:
        correlator.feed(batch)
    last = max(int(b.rows["t_ns"].max()) for b in node.batches)
    for t in range(int(node.batches[0].rows["t_ns"].min()), last + 20 * 10**9, 10**8):
        findings += [b for b in correlator.advance(t) if b.table == "finding"]
    rows = np.concatenate([b.rows for b in findings])
    assert len(set(rows["finding_id"])) == 1
    final = rows[-1]
    assert (final["symptom"], final["cause"], final["state"]) == (
        b"clock_disagreement",
        b"unknown",
        TABLES["finding"].code("state", "closed"),
    )
    assert server.where in final["sentence"].decode()
    output = re.search(r"was off by (\d+) ms", final["sentence"].decode())
    assert output
    assert abs(int(output[1]) - 101) <= max(check["distance_ns"] for check in lie) / 1e6 + 1


def test_ntpd_is_what_ntpq_prints(wire: Cable, daemons: Callable[..., Daemon], tmp_path: Path) -> None:
    daemons(chronyd, wire.right, tmp_path, "server", SERVER)
    daemons(ntpd, wire.left, tmp_path, f"server {Cable.RIGHT} iburst minpoll 3 maxpoll 3\nrestrict 127.0.0.1")
    node = Node(wire)
    assert node.rows("ntpd", "system")[0]["state"] == "unsynchronised"
    until(lambda: node.rows("ntpd", "system")[-1]["state"] == "synchronised", 60)
    for _ in range(20):  # between two equal times of the last update nothing was updated
        updated, before, rows = (
            ntpq(wire.left, "rv 0 reftime", "rv &1 rec"),
            ntpq(wire.left, "rv", "rv &1"),
            node.rows("ntpd", "source"),
        )
        if updated == ntpq(wire.left, "rv 0 reftime", "rv &1 rec"):
            break
    else:
        pytest.fail("ntpd updates faster than it can be asked")
    own = [decoded(r) for r in node.batches[-1].rows if r["kind"] == TABLE.code("kind", "system")][-1]
    values = dict(re.findall(r"(\w+)=([^,\s]+)", before.partition("srcadr")[0]))
    peer = dict(re.findall(r"(\w+)=([^,\s]+)", before[before.index("srcadr") :]))
    assert (
        (own["stratum"], own["ref_id"], own["leap"])
        == (int(values["stratum"]), values["refid"], "none")
        == (6, Cable.RIGHT, "none")
    )
    assert own["offset_ns"] == round(float(values["offset"]) * 1e6)
    assert own["freq_ppb"] == round(float(values["frequency"]) * 1000)
    assert abs(own["root_delay_ns"] - float(values["rootdelay"]) * 1e6) <= 1000
    row = rows[-1]
    assert (row["source"], row["state"], row["stratum"], row["reach"]) == (
        Cable.RIGHT,
        "selected",
        5,
        int(peer["reach"], 8),
    )
    assert (row["offset_ns"], row["delay_ns"]) == (
        round(float(peer["offset"]) * 1e6),
        round(float(peer["delay"]) * 1e6),
    )
