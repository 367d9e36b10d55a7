"""First handshakes in roots that nobody has seen before: how many an agent sees. ``python -m tests.bench.roots [--roots
N]``. As root.

Each root is a fresh copy of openssl, a shell and their libraries, so new inodes; one program is started in it, once.
The server is this host's openssl. Images are overlays, mounted some time before: of copies, and of a libssl that this
host has not, for which an ELF analyzer has to start.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from tests.bench.common import arguments, report, running
from tests.kernel.test_new_roots import Mounted, make_root
from tests.kernel.test_tls_results import server
from tests.servers.certificates import self_signed
from tests.system.agent import Agent

_CLIENT = "/usr/bin/openssl s_client -connect 127.0.0.1:{port} < /etc/none"
_WAYS = {"at once": "", "20 ms after the root's first program": "sleep 0.02; ", "50 ms after": "sleep 0.05; "}
_MOUNTED_S = (0.3, 0.1, 0.03)


def client(root: Path, before: str, port: str) -> tuple[int, float]:
    """Runs openssl as the root's first program, or as the second after a wait; its process id, and seconds."""
    words = ["chroot", root, "/bin/sh", "-c", f"{before}exec {_CLIENT.format(port=port)}"]
    if not before:
        words = ["chroot", root, "/usr/bin/openssl", "s_client", "-connect", f"127.0.0.1:{port}"]
    begun = time.monotonic()
    with subprocess.Popen(
        list(map(str, words)), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as child:
        child.wait()
    return child.pid, time.monotonic() - begun


def seen(agent: Agent, pids: list[int]) -> int:
    rows = agent.json("query", "tls_handshake", "--where", f"pid in ({','.join(map(str, pids))})", "--limit", "100000")[
        "rows"
    ]
    return len({row["pid"] for row in rows if row["role"] == "client"})


def render(agent: Agent, what: str, trials: list[tuple[int, float]]) -> None:
    time.sleep(1.5)
    pids, took_s = [pid for pid, _ in trials], [took for _, took in trials]
    report(
        f"first handshakes of new {what}",
        f"{seen(agent, pids)} of {len(pids)} (programs of {statistics.median(took_s) * 1e3:.0f} ms)",
        "-",
        "-",
    )


def image(certs: Path, directory: Path, own: bool, mounted_s: float) -> tuple[int, float]:
    directory.mkdir()
    mounted = Mounted(directory, "image", own=own)
    time.sleep(0.5)
    with server(certs) as (_, port), mounted as (root,):
        time.sleep(mounted_s)
        return client(root, "", port)


def main() -> None:
    given = arguments(
        __doc__,
        roots=(20, "of each kind"),
        listed=(2, "roots 0: without a linker's cache, 1: with, 2: both, 3: images only"),
        rest=(6.0, "seconds between two: the process that examines files ends after five"),
    )
    with tempfile.TemporaryDirectory() as directory, running() as agent:
        certs = Path(directory)
        self_signed(certs)
        time.sleep(given.rest)
        for cache in ((False,), (True,), (True, False), ())[given.listed]:
            for variant, before in _WAYS.items():
                trials = []
                for i in range(given.roots):
                    root = make_root(
                        Path(directory) / f"{cache}-{variant}-{i}", ("/bin/sh", "/usr/bin/openssl", "/bin/sleep"), cache
                    )
                    (root / "etc/none").touch()
                    time.sleep(given.rest)
                    with server(certs) as (_, port):
                        trials.append(client(root, before, port))
                render(
                    agent, f"roots, libraries {'listed by ld.so.cache' if cache else 'not listed'}, {variant}", trials
                )
        for own in (False, True):
            for mounted_s in _MOUNTED_S:
                trials = []
                for i in range(given.roots):
                    time.sleep(given.rest)
                    trials.append(image(certs, Path(directory) / f"{own}-{mounted_s}-{i}", own, mounted_s))
                render(
                    agent,
                    f"images, {'a libssl of their own' if own else 'copies'}, at once, mounted {mounted_s * 1e3:.0f} ms"
                    " before",
                    trials,
                )


if __name__ == "__main__":
    main()
