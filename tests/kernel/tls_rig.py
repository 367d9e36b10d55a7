"""The exec and tls families (and tcp, where asked for) attached for real, and Python programs that shake hands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import load, release
from agent.kernel.probe import Parts
from agent.probes import discover
from agent.tables import TABLES
from agent.targets.targets import Targets
from tests.kernel.local_attach import LocalAttacher
from tests.patience import PATIENCE


class Rig:
    """Attached families with everything that ``setup`` adds, and the rows so far."""

    def __init__(self, *names: str) -> None:
        known = discover()
        self.loaded = load([known[name] for name in sorted({"exec", "tls", *names})])
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        self.tls = self.loaded.families["tls"]
        self.source = KernelSource(self.loaded, interval_ns=200_000_000)
        self.attacher = LocalAttacher()
        self.targets = Targets(self.attacher, self.source)
        setup = known["tls"].setup
        assert setup is not None
        self.sources = [self.source, self.targets, *setup(self.tls, self.source, self.attacher, self.targets, Parts())]
        self.targets.start()
        self._rows: dict[str, list[np.ndarray]] = {}
        end = (
            time.monotonic() + 20 * PATIENCE
        )  # what runs already is known; ``start`` waits for an agent's sake, not for a slow machine's
        while not self.targets._quiet() and time.monotonic() < end:
            self.settle(0.02)

    def pump(self) -> None:
        for source in self.sources:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):  # type: ignore[attr-defined]
                self._rows.setdefault(batch.table, []).append(batch.rows)

    def rows(self, table: str = "tls_handshake") -> np.ndarray:
        return np.concatenate([TABLES[table].empty(0), *self._rows.get(table, [])])

    def settle(self, seconds: float = 0.4) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.pump()
            time.sleep(0.01)

    def know(self, pid: int, limit_s: float = 20) -> None:
        """Pumps until a process's library has its probes: handshakes before that go unseen."""
        end = time.monotonic() + limit_s * PATIENCE
        while not (self.targets._processes.of(pid).used and self.targets._quiet() and not self._due(pid)):
            assert time.monotonic() < end, f"no library found in process {pid}"
            self.settle(0.02)

    def _due(self, pid: int) -> bool:
        """Whether one of the early looks is still to come: the first may have come before its libraries."""
        return any(scan.pid == pid and scan.number < 3 for scan in self.targets._due)

    def run(self, *argv: str | Path, env: dict[str, str] | None = None) -> tuple[int, str]:
        """Runs a program while pumping; (its pid, its output). It must succeed."""
        with subprocess.Popen([*map(str, argv)], stdout=subprocess.PIPE, env=env, text=True) as child:
            while child.poll() is None:
                self.pump()
                time.sleep(0.005)
            out = child.stdout.read() if child.stdout else ""
        assert child.returncode == 0, out
        self.settle()
        return child.pid, out

    def python(self, script: str, *args: str, interpreter: str = sys.executable) -> np.ndarray:
        """The handshakes of a Python program that is given the certificate directory and arguments."""
        pid, _ = self.run(interpreter, "-c", script, *args)
        return self.of(pid)

    def of(self, *pids: int) -> np.ndarray:
        rows = self.rows()
        return rows[np.isin(rows["pid"], pids)]

    def wait(self, pick: Callable[[np.ndarray], np.ndarray], n: int, limit_s: float = 5) -> np.ndarray:
        end = time.monotonic() + limit_s
        while time.monotonic() < end and len(pick(self.rows())) < n:
            self.settle(0.02)
        self.settle()
        return pick(self.rows())

    def lost(self) -> int:
        self.pump()
        return int(self.rows("loss")["count"].sum())

    def close(self) -> None:
        for source in reversed(self.sources):
            source.close()  # type: ignore[attr-defined]
        self.attacher.close()
        release(self.loaded)


def names(rows: np.ndarray, column: str) -> list[str]:
    """An enum column as words."""
    words = TABLES["tls_handshake"].by_name[column].names
    return [words[code] if code >= 0 else "" for code in rows[column].tolist()]


#: What the Python programs start with: contexts, connected socket pairs, and both ends run at once.
PROLOGUE = """
import ssl, socket, sys, threading, time
certs = sys.argv[1]
sc = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); sc.load_cert_chain(certs + "/cert", certs + "/key")
cc = ssl.create_default_context(cafile=certs + "/cert")
def pair():
    l = socket.create_server(("127.0.0.1", 0)); a = socket.create_connection(l.getsockname()); b = l.accept()[0]
    l.close(); return a, b
def both(client, server):
    out = []
    def run(f):
        try: out.append(f())
        except (ssl.SSLError, OSError) as e: out.append(e)
    t = threading.Thread(target=run, args=(server,)); t.start(); run(client); t.join(); return out
"""
