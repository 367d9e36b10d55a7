"""Names that real programs look up, at a small server of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from agent.common.address import peer_text
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import load, release
from agent.kernel.probe import Parts
from agent.kernel.settings import ProbeSettings
from agent.probes import discover
from agent.tables import TABLES
from agent.targets.targets import Targets
from tests.kernel import dns_place
from tests.kernel.local_attach import LocalAttacher
from tests.patience import PATIENCE

RESOLV = f"nameserver {dns_place.ADDRESS};options timeout:1 attempts:3"
NOBODY = "nameserver 127.0.0.99;options timeout:1 attempts:1"
CLIENT = r"""
#include <netdb.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv)
{
	for (int i = 2; i < argc; i++) {
		struct addrinfo *found, hints = { .ai_family = argv[1][0] == '4' ? AF_INET : AF_UNSPEC };
		if (argv[1][0] == 'n') hints.ai_flags = AI_NUMERICHOST;
		printf("%d\n", getaddrinfo(argv[i], 0, &hints, &found));
	}
	return 0;
}
"""
#: A resolver of a program's own: a connected socket that it waits at.
RAW = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 53)); s.settimeout(1)
for label in sys.argv[2:]:
    raw = bytes.fromhex(label)
    s.send(struct.pack("!6H", 7, 0x100, 1, 0, 0, 0) + raw + bytes((0, 0, 1, 0, 1)))
    try: s.recv(4096)
    except OSError as error: print(error)
"""


class Rig:
    """The families attached, to every C library here."""

    def __init__(self) -> None:
        known = discover()
        self.loaded = load([known[name] for name in ("exec", "dns", "syscalls")])
        for family in self.loaded.families.values():
            assert family.state == "attached", family.reason
        self.source = KernelSource(self.loaded, interval_ns=200_000_000)
        self.attacher = LocalAttacher()
        self.targets = Targets(self.attacher, self.source)
        self.sources = [self.source, self.targets]
        for name in ("dns", "syscalls"):
            setup = known[name].setup
            assert setup is not None
            self.sources += setup(
                self.loaded.families[name],
                self.source,
                self.attacher,
                self.targets,
                Parts(settings=ProbeSettings(syscalls="blocked")),
            )
        self.targets.start()
        self._rows: list[np.ndarray] = []
        while not self.targets._quiet():
            self.pump()

    def pump(self) -> None:
        for source in self.sources:
            for batch in source.drain(time.clock_gettime_ns(time.CLOCK_BOOTTIME)):
                if batch.table == "dns_lookup":
                    self._rows.append(batch.rows)
                assert batch.table != "loss", batch.rows

    def run(self, options: str, *program: str | Path) -> tuple[np.ndarray, list[str]]:
        """(its lookups, its output) of a program at the place."""
        place = ["unshare", "-n", "-m", "--propagation", "private", sys.executable, dns_place.__file__, options]
        with subprocess.Popen([*place, *map(str, program)], stdout=subprocess.PIPE, text=True) as child:
            while child.poll() is None:
                self.pump()
                time.sleep(0.005)
            out = child.stdout.read() if child.stdout else ""
        assert child.returncode == 0, out
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            self.pump()
            time.sleep(0.01)
        rows = np.concatenate([TABLES["dns_lookup"].empty(0), *self._rows])
        return rows[rows["pid"] == child.pid], out.splitlines()

    def close(self) -> None:
        for source in reversed(self.sources):
            source.close()
        self.attacher.close()
        release(self.loaded)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    one = Rig()
    yield one
    one.close()


def build(compiler: str, out: Path) -> Path:
    subprocess.run([compiler, "-x", "c", "-", "-o", str(out)], input=CLIENT.encode(), check=True)
    return out


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("gcc", tmp_path_factory.mktemp("dns") / "client")


def reported(rows: np.ndarray) -> list[tuple[str, str, object, object]]:
    """(name, result, tries, rcode), in the order of their end."""
    rows = rows[np.argsort(rows["t_ns"], kind="stable")]
    words = TABLES["dns_lookup"].by_name["result"].names
    plain: Callable[[int], object] = lambda n: None if n < 0 else n  # noqa: E731
    return [(r["name"].decode(), words[r["result"]], plain(int(r["tries"])), plain(int(r["rcode"]))) for r in rows]


def test_names_with_who_was_asked_and_how_long_it_took(rig: Rig, client: Path) -> None:
    names = [f"slow-{i}.lab" for i in range(7)]
    rows, codes = rig.run(RESOLV, client, "4", *names)
    assert codes == ["0"] * 7
    assert reported(rows) == [(name, "ok", 1, 0) for name in names]
    assert {peer_text(r["peer"].tobytes()) for r in rows} == {f"{dns_place.ADDRESS}:53"}
    assert (rows["duration_ns"] >= dns_place.SLOW_S * 1e9).all() and (rows["duration_ns"] < PATIENCE * 1e9).all()
    assert set(rows["qtype"].tolist()) == {b"A"} and set(rows["comm"].tolist()) == {b"client"}


def test_both_questions_of_a_name_are_one_lookup(rig: Rig, client: Path) -> None:
    rows, _ = rig.run(RESOLV, client, "any", "slow-both.lab")
    assert reported(rows) == [("slow-both.lab", "ok", 1, 0)] and rows["qtype"][0] == b"A+AAAA"


def test_how_lookups_fail(rig: Rig, client: Path) -> None:
    rows, codes = rig.run(RESOLV, client, "4", "nx.lab", "fail.lab", "denied.lab", "lost.lab", "gone.lab")
    assert codes == ["-2", "-3", "-3", "0", "-3"]
    found = {name: rest for name, *rest in reported(rows)}
    assert found["nx.lab"] == ["nxdomain", 1, 3] and found["lost.lab"] == ["ok", 2, 0]
    assert found["fail.lab"][0] == "servfail" and found["denied.lab"][0] == "refused"
    assert found["gone.lab"] == ["timeout", 3, None]
    assert rows["duration_ns"].max() >= 2_900_000_000
    rows, codes = rig.run(NOBODY, client, "4", "nobody.lab")
    ((name, how, *_),) = reported(rows)
    assert codes == ["-3"] and name == "nobody.lab" and how in ("refused", "error")  # on loopback nobody waits for that


def test_addresses_ask_nobody(rig: Rig, client: Path) -> None:
    rows, codes = rig.run(RESOLV, client, "4", *["127.0.0.1"] * 5)
    assert len(rows) <= 1 and codes == ["0"] * 5  # the first one may have to read its code from disk
    rows, codes = rig.run(RESOLV, client, "n", *["slow-numeric.lab"] * 5)
    assert not len(rows) and codes == ["-2"] * 5


def test_what_a_program_asks_by_itself_is_seen_at_its_socket(rig: Rig, tmp_path: Path) -> None:
    python = tmp_path / "asker"
    python.symlink_to(os.path.realpath(sys.executable))
    labels = [b"\x09slow-mine\x03lab", b"\x07nx-mine\x03lab", b"\x04gone\x03lab"]
    rows, out = rig.run(RESOLV, python, "-c", RAW, dns_place.ADDRESS, *(label.hex() for label in labels))
    assert out == ["timed out"]
    assert reported(rows) == [
        ("slow-mine.lab", "ok", 1, 0),
        ("nx-mine.lab", "nxdomain", 1, 3),
        ("", "timeout", 1, None),
    ]
    assert rows["source"].tolist() == [TABLES["dns_lookup"].code("source", "socket")] * 3
    assert rows["qtype"].tolist() == [b"A", b"A", b""]


def test_hostile_names_are_bounded_and_shown_safely(rig: Rig, client: Path, tmp_path: Path) -> None:
    python = tmp_path / "asker"
    python.symlink_to(os.path.realpath(sys.executable))
    evil, long_ = b"\x0dslow-\x1b[2J\x07\xff\n\xe2", b"\x08slow-aaa" + 3 * (b"\x3f" + b"\x1b" * 63)
    rows, _ = rig.run(RESOLV, python, "-c", RAW, dns_place.ADDRESS, evil.hex(), long_.hex())
    names = [r["name"].decode("ascii") for r in rows]
    assert names[0] == "slow-\\027[2J\\007\\255\\010\\226" and len(names[1]) == 128 and "~" in names[1]
    rows, _ = rig.run(RESOLV, client, "4", "slow-\x1b[2J.lab", "x" * 5000)
    assert [r["name"].decode("ascii").isprintable() for r in rows] == [True] * len(rows) and len(rows)


@pytest.fixture(scope="module")
def go_client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dns") / "lookup"
    subprocess.run(
        ["go", "build", "-o", str(out), "."],
        cwd=Path(__file__).parent / "goprograms" / "lookup",
        env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": ""},
        check=True,
    )
    return out


def test_go_looks_up_by_itself(rig: Rig, go_client: Path) -> None:
    rig.run(RESOLV, go_client, "127.0.0.1")  # what runs for the first time is known a little later
    rig.run(RESOLV, go_client, "gone.lab", "gone.lab")
    names = ["127.0.0.1", *(f"slow-{i}.lab" for i in range(5)), "nx.lab", "fail.lab", "gone.lab"]
    rows, out = rig.run(RESOLV, go_client, *names)
    assert [line == "<nil>" for line in out] == [True] * 6 + [False] * 3
    found = [(name, how) for name, how, *_ in reported(rows)]
    assert found == [
        *((f"slow-{i}.lab", "ok") for i in range(5)),
        ("nx.lab", "nxdomain"),
        ("fail.lab", "servfail"),
        ("gone.lab", "timeout"),
    ]
    assert {peer_text(row["peer"].tobytes()) for row in rows[5:]} == {f"{dns_place.ADDRESS}:53"}
    assert (rows["tid"] == -(2**63)).all() and (rows["duration_ns"][:5] >= dns_place.SLOW_S * 1e9).all()


@pytest.mark.skipif(not shutil.which("musl-gcc"), reason="no musl-gcc")
def test_musl(rig: Rig, tmp_path: Path) -> None:
    musl = build("musl-gcc", tmp_path / "client")
    rig.run(
        RESOLV, musl, "4", "gone.lab", "gone.lab"
    )  # a library that is used for the first time is known a little later
    rows, codes = rig.run(RESOLV, musl, "4", "slow-musl.lab", "nx.lab", "gone.lab")
    assert codes == ["0", "-2", "-3"]
    assert [(name, how) for name, how, *_ in reported(rows)] == [
        ("slow-musl.lab", "ok"),
        ("nx.lab", "nxdomain"),
        ("gone.lab", "timeout"),
    ]


def test_nothing_comes_without_the_probes(client: Path) -> None:
    one = Rig()
    try:
        one.attacher.close()
        os.close(one.loaded.families["syscalls"].links.pop("syscalls_on_switch"))
        rows, codes = one.run(RESOLV, client, "4", "slow-1.lab", "nx.lab")
        assert not len(rows) and codes == ["0", "-2"]
    finally:
        one.close()
