"""Chains of real programs: the finding names the process at the end of what each waited for, not the next one."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.patience import until
from tests.ports import free_ports
from tests.servers.postgresql import Postgres
from tests.system.agent import Agent

PROGRAM = Path(__file__).parent / "programs" / "chained.py"
FRONT, SESSIONS, LOG, PIPE = range(4)


class Chains:
    """front asks shop, which asks a PostgreSQL and, by turns, writes to a log daemon and to a pipe. ``ask`` asks it all
    the time.
    """

    def __init__(self, folder: Path, postgres: Postgres) -> None:
        self.ports, self.postgres = free_ports(4), postgres
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended = threading.Event()
        with psycopg2.connect(postgres.url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE account AS SELECT 1 AS id, 0 AS n")
        log, reader, writer = str(folder / "log.sock"), *os.pipe()
        self._run("logd", "log", log)
        until(lambda: os.path.exists(log), 20, 0.05)
        self.processes["reader"] = subprocess.Popen(["cat"], stdin=reader, stdout=subprocess.DEVNULL)
        self._run("shop", "web", self.ports[SESSIONS], "sql", postgres.url)
        self._run("journal", "web", self.ports[LOG], "socket", log)
        self._run("piper", "web", self.ports[PIPE], "pipe", "", stdout=writer)
        self._run("front", "web", self.ports[FRONT], "http", self.ports[SESSIONS])
        os.close(reader)
        os.close(writer)
        for port in self.ports:
            until(lambda port=port: not socket.socket().connect_ex(("127.0.0.1", port)), 20, 0.05)
        self._asking = [threading.Thread(target=self._ask, args=(port,)) for port in self.ports for _ in range(4)]
        for thread in self._asking:
            thread.start()

    def _run(self, name: str, *args: object, stdout: int | None = None) -> None:
        command = [sys.executable, str(PROGRAM), *map(str, args)]
        self.processes[name] = subprocess.Popen(command, stdout=stdout)

    def _ask(self, port: int) -> None:
        while not self._ended.wait(0.15):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=20) as answer:
                answer.read()

    def pid(self, name: str) -> int:
        return self.processes[name].pid

    def end(self) -> None:
        self._ended.set()
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        for thread in self._asking:
            thread.join()


@pytest.fixture(scope="module")
def chains(tmp_path_factory: pytest.TempPathFactory, shared: Agent) -> Iterator[Chains]:
    """They have run for as long as it takes to know what is usual."""
    with Postgres() as postgres:
        one = Chains(tmp_path_factory.mktemp("chains"), postgres)
        try:
            time.sleep(30)
            yield one
        finally:
            one.end()


def found(agent: Agent, began: float, who: int) -> dict[str, Any]:
    """The only finding since then that names this process."""

    def those() -> list[dict[str, Any]]:
        rows = agent.json("findings")["rows"]
        return [row for row in rows if row["end_ns"] > began * 1e9 and f"pid {who}" in row["sentence"]]

    rows = agent.until(lambda: (rows := those()) and all(row["state"] == "closed" for row in rows) and rows)
    assert len(rows) == 1, [row["sentence"] for row in rows]
    return dict(rows[0])


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


#: argv: the server. Says which session holds the lock, and is idle in its transaction.
HOLDS = """
import psycopg2, sys, time
connection = psycopg2.connect(sys.argv[1]); connection.cursor().execute("UPDATE account SET n = 0")
print(connection.info.backend_pid, flush=True); time.sleep(5); connection.commit()
"""


def test_a_session_that_holds_a_lock_of_the_database(shared: Agent, chains: Chains) -> None:
    """Named is the client that is idle meanwhile; or, if its wait was not recorded, the session."""
    began = now()
    client = subprocess.Popen([sys.executable, "-c", HOLDS, chains.postgres.url], stdout=subprocess.PIPE, text=True)
    holder, _ = client.communicate(timeout=60)
    one = found(shared, began, chains.pid("front"))
    assert one["cause"] == "process_wait", one["sentence"]
    assert one["culprit_pid"] in (client.pid, int(holder)), one["sentence"]
    assert f"postgres pid {int(holder)}" in one["sentence"]
    assert f"pid {chains.pid('shop')}" in one["sentence"]


@pytest.mark.parametrize(("sign", "cause"), [(signal.SIGUSR1, "process_wait"), (signal.SIGUSR2, "busy")])
def test_a_log_daemon_that_does_something_else(shared: Agent, chains: Chains, sign: signal.Signals, cause: str) -> None:
    """It sleeps, or computes. Nobody watches it: it has no port."""
    began = now()
    os.kill(chains.pid("logd"), sign)
    one = found(shared, began, chains.pid("journal"))
    assert (one["cause"], one["culprit_pid"]) == (cause, chains.pid("logd")), one["sentence"]


def test_a_reader_of_a_pipe_that_is_stopped(shared: Agent, chains: Chains) -> None:
    began = now()
    os.kill(chains.pid("reader"), signal.SIGSTOP)
    time.sleep(5)
    os.kill(chains.pid("reader"), signal.SIGCONT)
    one = found(shared, began, chains.pid("piper"))
    assert (one["cause"], one["culprit_pid"]) == ("process_stopped", chains.pid("reader")), one["sentence"]


def test_a_program_under_a_debugger(shared: Agent, chains: Chains) -> None:
    began = now()
    command = ["gdb", "-p", str(chains.pid("shop")), "-batch", "-ex", "shell sleep 4", "-ex", "detach"]
    subprocess.run(command, check=True, capture_output=True)
    one = found(shared, began, chains.pid("front"))
    assert (one["cause"], one["cause_detail"], one["culprit_pid"]) == ("process_stopped", "traced", chains.pid("shop"))


def test_a_server_that_sleeps_by_its_own_choice(shared: Agent, chains: Chains) -> None:
    began = now()
    os.kill(chains.pid("shop"), signal.SIGUSR1)
    one = found(shared, began, chains.pid("front"))
    assert (one["cause"], one["cause_detail"]) == ("process_wait", "clock_nanosleep")
    assert one["culprit_pid"] == chains.pid("shop")
    assert "as its program requested" in one["sentence"]
