"""What the user nobody makes happen without end is held to a share, to the last record; what happens to others is
reported meanwhile.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from agent.tables import TABLES
from tests.kernel.clock_rig import Rig as ClockRig
from tests.kernel.conftest import Attached
from tests.kernel.test_dns import RESOLV, build
from tests.kernel.test_dns import Rig as DnsRig
from tests.kernel.test_process import sleepers

Attach = Callable[..., Attached]
NOBODY = 65534
DROP = "import os, signal, socket, struct, sys, time\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
#: Stops a child of its own and lets it go on.
STOPS = """
child = os.fork()
if not child: time.sleep(60)
for _ in range(int(sys.argv[1])):
    os.kill(child, signal.SIGSTOP); os.waitpid(child, os.WUNTRACED)
    os.kill(child, signal.SIGCONT); os.waitpid(child, os.WCONTINUED)
print(child, flush=True)
os.kill(child, signal.SIGKILL)
"""
KILLS = """
for _ in range(int(sys.argv[1])):
    child = os.fork()
    if not child: time.sleep(60)
    os.kill(child, signal.SIGKILL); os.waitpid(child, 0)
"""
#: Looks up a name that fails at once.
NAMES = r"""
name = b"\x1b]0;x\a\xff\x9b2J" * 40
for _ in range(int(sys.argv[1])):
    try: socket.getaddrinfo(name, 80)
    except OSError: pass
"""
#: Asks a name server of its own, without end, that answers with whatever it likes.
ANSWERS = r"""
import os, socket, subprocess
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
server, asks = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53)); asks.connect(("127.0.0.1", 53))
os.setgid(65534); os.setuid(65534)
label = lambda raw: bytes([len(raw)]) + raw
head = bytes((0, 7, 0x81, 0x83, 0, 1, 0, 0, 0, 0, 0, 0))
names = [label(raw) for raw in (b"\x1b[2J", b"a\0b", b"\xff\xfe")]
names += [4 * label(b"x" * 62), b"", b"\xc0\x0c", label(b"n")]
packets = [head + n + b"\0\0\1\0\1" for n in names]
packets += [packets[0][:n] for n in (0, 1, 11, 12, 13, 16)]
packets += [head + b"\x3f" + b"y" * 4, head + os.urandom(400), head + b"\x01" * 200]
if not os.fork():
    n = 0
    while True:
        _, who = server.recvfrom(64)
        server.sendto(packets[n % len(packets)], who)
        n += 1
print(flush=True)
while True:
    asks.send(b"?"); asks.recv(4096)
"""
#: Asks a server of somebody else, and puts another error into its own memory for each answer, which the kernel is told
#: not to.
FORGES = r"""
import ctypes
libc, times = ctypes.CDLL(None), int(sys.argv[1])
asks = [socket.create_connection(("127.0.0.1", int(sys.argv[2]))) for _ in range(50)]
for n in range(times):
    word = "".join("ABCDEFGHIJ"[int(digit)] for digit in f"{n:05}")
    asks[n % 50].sendall(b"?")
    libc.recv(asks[n % 50].fileno(), f"-{word} forged".encode(), 8, socket.MSG_TRUNC)
print(flush=True)
"""


def losses(rows: np.ndarray) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        found[row["source"].decode()] += int(row["count"])
    return found


def storm(attached: Attached, script: str, *given: int) -> tuple[str, float]:
    """Its output, and for how many seconds it ran."""
    begun = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-c", DROP + script, *map(str, given)], stdout=subprocess.PIPE, text=True
    ) as child:
        while child.poll() is None:
            attached.pump()
            time.sleep(0.005)
        assert child.stdout is not None and child.returncode == 0
        return child.stdout.read(), time.monotonic() - begun


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """Answers the same to whatever comes, to everybody."""

    class Says(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            while self.request.recv(100):
                self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Says) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("script", "times", "each"), [(STOPS, 1009, 2), (KILLS, 1009, 1)])
def test_signals(attach: Attach, script: str, times: int, each: int) -> None:
    attached = attach("process")
    with sleepers(7) as some:
        for one in some[:3]:
            one.send_signal(signal.SIGSTOP)
        reported, took_s = storm(attached, script, times)
        for one in some:
            one.kill()
        pids = [one.pid for one in some]
        theirs = attached.wait(
            "process_event", lambda r: r[np.isin(r["pid"], pids)], lambda r: len(r) >= 10, limit_s=10
        )
    assert len(theirs) == 10 and (theirs["sender_pid"] == os.getpid()).all() and (theirs["uid"] == os.getuid()).all()
    his = attached.rows("process_event")
    his = his[his["uid"] == NOBODY]
    lost = losses(attached.rows("loss"))
    assert 256 <= len(his) <= 256 + 125 * (took_s + 1)
    made = times * each + bool(reported)  # the child of the first is killed in the end
    assert len(his) + lost["process_shares"] - made in (0, 1)  # the program's own end, where it lived for a second
    assert set(lost) <= {"process_shares"}


def test_answers_of_servers(attach: Attach) -> None:
    """Who forges what a server answered is reported as the one who says so, and leaves others room."""
    attached, times = attach("tcp"), 5003
    with answering(b"+OK\r\n") as port:
        _, took_s = storm(attached, FORGES, times, port)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"?")
            client.recv(100)
    rows = attached.wait("service_answer", lambda r: r[r["dport"] == port], lambda r: (r["uid"] == 0).any())
    mine, his = (rows[rows["uid"] == uid] for uid in (0, NOBODY))
    assert (mine["code"] == b"").all() and mine["count"].sum() == 1
    assert np.char.startswith(his["code"], b"A").all()
    assert 256 <= len(his) <= 256 + 250 * (took_s + 1)
    lost = losses(attached.rows("loss"))
    assert len(his) < len(his) + lost["tcp_shares"] <= times
    assert set(lost) == {"tcp_shares"}


class Lookups(DnsRig):
    """Counts what was lost, and keeps everybody's rows."""

    def __init__(self) -> None:
        self.lost: Counter[str] = Counter()
        super().__init__()

    def pump(self) -> None:
        for source in self.sources:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                if batch.table == "dns_lookup":
                    self._rows.append(batch.rows)
                elif batch.table == "loss":
                    self.lost += losses(batch.rows)
        assert not self.source.faults.failures

    def of_nobody(self) -> np.ndarray:
        rows = np.concatenate([TABLES["dns_lookup"].empty(0), *self._rows])
        self._rows.clear()
        rows = rows[rows["uid"] == NOBODY]
        assert all(re.fullmatch(rb"[!-~]*", name) for name in rows["name"].tolist())
        return rows


@pytest.fixture(scope="module")
def lookups() -> Iterator[Lookups]:
    one = Lookups()
    yield one
    one.close()


def test_names(lookups: Lookups) -> None:
    times = 2003
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-c", DROP + NAMES, str(times)]) as child:
        while child.poll() is None:
            lookups.pump()
            time.sleep(0.005)
    took_s = time.monotonic() - begun
    lookups.pump()
    rows = lookups.of_nobody()
    assert 256 <= len(rows) <= 256 + 500 * (took_s + 1)
    assert len(rows) + lookups.lost["dns_shares"] == times and set(lookups.lost) == {"dns_shares"}


def test_answers(lookups: Lookups, tmp_path: Path) -> None:
    client = build("gcc", tmp_path / "client")
    lookups.lost.clear()
    begun = time.monotonic()
    with subprocess.Popen(
        ["unshare", "-n", "--", sys.executable, "-c", ANSWERS], stdout=subprocess.PIPE, start_new_session=True
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline()
            names = [f"slow-{i}.lab" for i in range(13)]
            rows, codes = lookups.run(RESOLV, client, "4", *names)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    assert codes == ["0"] * 13 and [r["name"].decode() for r in rows] == names
    his = lookups.of_nobody()
    assert 256 <= len(his) <= 256 + 500 * (time.monotonic() - begun + 1)
    assert lookups.lost["dns_shares"] > 1000 and set(lookups.lost) == {"dns_shares"}


#: Says that it adjusted the clock, as nobody.
LIAR = """
#include <sys/timex.h>
#include <unistd.h>
int main(void)
{
	struct timex tx = { .modes = ADJ_FREQUENCY, .freq = 65536 };
	setuid(65534);
	write(1, "\\n", 1);
	read(0, &tx.offset, 1);
	for (int i = 0; i < 100; i++, usleep(10000))
		adjtimex(&tx);
	return 0;
}
"""


def test_who_may_not_move_a_clock_did_not_whatever_his_library_reports(tmp_path: Path) -> None:
    library, source, program = tmp_path / "libc-2.99.so", tmp_path / "liar.c", tmp_path / "liar"
    source.write_text(LIAR)
    fake = ["gcc", "-x", "c", "-", "-shared", "-fPIC", "-o", library]
    subprocess.run(fake, input=b"int adjtimex(void *tx) { return 0; }", check=True)
    subprocess.run(["gcc", source, "-o", program, library, f"-Wl,-rpath,{tmp_path}"], check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None and child.stdout.readline()
        rig = ClockRig(tmp_path)
        try:
            while not rig.targets._quiet():
                rig.pump()
            child.stdin.close()
            while child.poll() is None:
                rig.pump()
                time.sleep(0.005)
            rig.settle()
            rows = rig.of(child.pid)
            assert 64 <= len(rows) <= 100 and set(rows["ret"].tolist()) == {-1}
            assert len(rows) + losses(rig.rows("loss"))["clock_shares"] == 100
        finally:
            rig.close()
