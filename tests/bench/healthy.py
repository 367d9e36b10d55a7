"""An ordinary node where nothing is wrong, and what the agent says of it: service-hours, findings that nobody felt, and
a bound of their rate.

Some fifty services (Redis, nginx and haproxy before prefork servers by TCP and Unix sockets, event loops, Node,
PostgreSQL, pools, consumers, journals) with bursts and lulls, deploys, reloads, log rotation, backups, checkpoints,
builds, cron. Callers log what they feel; the laboratory's rule (agent/lab/effect.py) decides whether it was anything.
What the agent says of processes that are not of this mix is counted apart.

As root: python -m tests.bench.healthy --minutes 60 [--times 1.5] [--keep DIR]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from agent.common.clocks import boot_ns
from agent.lab import effect, oplog
from tests.system.agent import Agent

FIRST_PORT, PORTS = 18100, 400
WARM_S = 30
NODE = (
    "require('http').createServer((q, r) => setTimeout(() => r.end('ok\\n'), Math.random() *"
    " 4)).listen(+process.argv[1], '127.0.0.1')"
)
SLACK_NS = 2_000_000_000
#: A process is looked for far more often than that; its number is not used again so soon.
SCAN_DELAYS_NS = 5_000_000_000


class Mix:
    """Everything that runs, below one directory. ``services`` counts what works; callers only ask."""

    def __init__(self, root: Path, seed: int, times: float = 1.0) -> None:
        self.root, self.chance, self.services, self.times = root, random.Random(seed), 0, times
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.started: dict[str, list[str]] = {}
        self.pids: dict[int, tuple[int, int]] = {}  # from when to when each was seen: numbers are used again
        self.happened: Counter[str] = Counter()
        self.old: list[tuple[float, subprocess.Popen[bytes]]] = []
        self._port = FIRST_PORT
        (root / "logs").mkdir()
        self.control = root / "rate"
        self.control.write_text("1")

    def several(self, usual: int) -> range:
        return range(round(usual * self.times))

    def port(self) -> str:
        self._port += 1
        return str(self._port)

    def start(self, name: str, *argv: str, user: str | None = None) -> None:
        self.started[name] = list(argv)
        self.running[name] = subprocess.Popen(
            argv,
            cwd=self.root,
            start_new_session=True,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(self.root / f"{name}.err").open("ab"),
        )
        self.services += not name.startswith("caller")

    def ours(self, name: str, *args: str) -> None:
        self.start(name, sys.executable, "-m", "tests.bench.healthy_programs", name.partition("-")[0], *args)

    def asked(self, kind: str, address: str, rate: float = 4.0) -> None:
        name = f"caller-{len([n for n in self.running if n.startswith('caller')])}"
        log = self.root / "logs" / f"{name}.ndjson"
        self.ours(name, kind, address, str(log), str(rate), str(self.control))

    def everything(self) -> None:
        os.environ["PYTHONPATH"] = os.getcwd()
        waiting: list[tuple[str, str]] = []
        redis = [self.port() for _ in self.several(6)]
        for n, port in enumerate(redis):
            (self.root / f"redis{n}").mkdir()
            self.start(
                f"redis-{n}",
                "redis-server",
                "--port",
                port,
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self.root / f"redis{n}"),
                "--appendonly",
                "yes" if n % 2 else "no",
                "--save",
                "20 10",
            )
            waiting.append(("redis", port))
        for n in self.several(8):
            self.ours(f"events-{n}", port := self.port())
            waiting.append(("web" if n % 2 else "once", port))
        behind = []
        for n in self.several(6):
            address = self.port() if n % 2 else str(self.root / f"prefork{n}.sock")
            self.ours(f"prefork-{n}", address)
            behind.append(address)
        for n in self.several(3):
            self.start(
                f"nginx-{n}",
                "nginx",
                "-c",
                str(self._nginx(n, port := self.port(), [behind[k % len(behind)] for k in (2 * n, 2 * n + 1)])),
            )
            waiting.append(("web", port))
        if shutil.which("haproxy"):
            for n in self.several(2):
                self.start(
                    f"haproxy-{n}",
                    "haproxy",
                    "-W",
                    "-db",
                    "-f",
                    str(self._haproxy(n, port := self.port(), behind[1::2])),
                )
                waiting.append(("web", port))
        if shutil.which("node"):
            for n in self.several(4):
                self.start(f"node-{n}", "node", "-e", NODE, port := self.port())
                waiting.append(("web", port))
        for n in self.several(4):
            self.ours(f"pool-{n}", "0")
        for n in self.several(8):
            self.ours(f"journal-{n}", str(self.root / f"journal{n}"))
        if table := self._postgres():
            waiting += [("table", table)] * 3
        time.sleep(4)
        for n in self.several(8):
            self.ours(f"consumer-{n}", redis[n % len(redis)])
        for kind, address in waiting:
            self.asked(kind, address)

    def _nginx(self, n: int, port: str, behind: list[str]) -> Path:
        place = self.root / f"nginx{n}"
        place.mkdir()
        up = "".join(f"server {'unix:' + a if a.startswith('/') else '127.0.0.1:' + a};" for a in behind)
        temp = " ".join(f"{k}_temp_path {place}/{k};" for k in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        (place / "conf").write_text(
            f"daemon off; user root; worker_processes 2; pid {place}/pid; error_log {place}/error; events {{}}\nhttp {{"
            f" {temp} access_log {place}/access; upstream up {{ {up} }} server {{ listen 127.0.0.1:{port}; location /"
            " { proxy_pass http://up; } } }\n"
        )
        return place / "conf"

    def _haproxy(self, n: int, port: str, behind: list[str]) -> Path:
        place = self.root / f"haproxy{n}.cfg"
        servers = "\n".join(f" server s{i} 127.0.0.1:{a} check inter 2s" for i, a in enumerate(behind))
        place.write_text(
            "defaults\n mode http\n timeout connect 5s\n timeout client 60s\n timeout server 60s\n"
            f"frontend f\n bind 127.0.0.1:{port}\n default_backend b\nbackend b\n{servers}\n"
        )
        return place

    def _postgres(self) -> str:
        found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
        if not found:
            return ""
        place, port = self.root / "pg", self.port()
        place.mkdir()
        shutil.chown(place, "postgres", "postgres")
        subprocess.run(
            [found[-1] / "initdb", "-D", place, "-A", "trust", "-U", "postgres"],
            user="postgres",
            check=True,
            capture_output=True,
        )
        self.start(
            "postgres",
            str(found[-1] / "postgres"),
            "-D",
            str(place),
            "-k",
            str(place),
            "-p",
            port,
            "-c",
            "checkpoint_timeout=30s",
            "-c",
            "listen_addresses=",
            user="postgres",
        )
        for _ in range(100):
            if not subprocess.run(
                ["psql", "-qh", place, "-p", port, "-U", "postgres", "-c", "create table t (a float)"],
                capture_output=True,
            ).returncode:
                return f"{place}:{port}"
            time.sleep(0.2)
        return ""

    # What happens

    def once(self) -> None:
        """One thing that is nobody's fault."""
        what = self.chance.choice(self.events())
        self.happened[what.__name__.strip("_")] += 1
        with contextlib.suppress(OSError, IndexError):
            what()

    def events(self) -> list[Callable[[], None]]:
        return [
            self._burst,
            self._burst,
            self._deploy,
            self._deploy,
            self._reload,
            self._rotate,
            self._cron,
            self._cron,
            self._build,
            self._backup,
            self._checkpoint,
            self._recycle,
        ]

    def _some(self, *kinds: str) -> str:
        return self.chance.choice([n for n in self.running if n.partition("-")[0] in kinds])

    def _aside(self, *argv: str) -> None:
        """A short program of its own."""
        self.old.append(
            (
                time.monotonic() + 60,
                subprocess.Popen(
                    argv,
                    cwd=self.root,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                ),
            )
        )

    def _burst(self) -> None:
        self.control.write_text(self.chance.choice(["0.2", "1", "1", "1", "3"]))

    def _deploy(self) -> None:
        """The new one listens beside the old, which is then asked to end, and killed should it not: as systemd and
        Kubernetes do.
        """
        name = self._some("events", "journal", "pool", "consumer")
        old = self.running[name]
        self.start(name, *self.started[name])
        self.services -= 1
        time.sleep(1.0)
        old.send_signal(signal.SIGTERM)
        self.old.append((time.monotonic() + 3, old))

    def _reload(self) -> None:
        name = self._some("nginx", "haproxy")
        self.running[name].send_signal(signal.SIGHUP if name.startswith("nginx") else signal.SIGUSR2)

    def _rotate(self) -> None:
        n = self.chance.choice(self.several(8))
        (self.root / f"journal{n}").rename(self.root / f"journal{n}.1")
        self.running[f"journal-{n}"].send_signal(signal.SIGHUP)
        for place in self.root.glob("nginx?"):
            (place / "access").rename(place / "access.1")
            os.kill(int((place / "pid").read_text()), signal.SIGUSR1)

    def _cron(self) -> None:
        for _ in range(self.chance.randrange(1, 4)):
            self._aside(
                "nice",
                "sh",
                "-c",
                self.chance.choice(
                    [
                        "ls -lR /usr/share/doc >/dev/null",
                        "false",
                        "sort /usr/share/dict/words | head; exit 1",
                        "gzip -c /usr/bin/python3* | wc -c",
                        "timeout 1 sleep 5",
                        "find /usr/lib -name '*.so' | xargs md5sum | tail -1",
                    ]
                ),
            )

    def _build(self) -> None:
        place = self.root / f"build{boot_ns()}"
        lib = Path(json.__file__).parent.parent
        self._aside(
            "sh",
            "-c",
            f"mkdir {place} && cp -r {lib}/asyncio {lib}/email {place} && {sys.executable} -m compileall -q -j 2"
            f" {place}; sync {place}; rm -r {place}",
        )

    def _backup(self) -> None:
        self._aside(
            "nice",
            "sh",
            "-c",
            f"tar czf {self.root}/backup.tgz {self.root}/redis? {self.root}/journal?; sync {self.root}/backup.tgz",
        )

    def _checkpoint(self) -> None:
        n = self.chance.choice(self.several(6))
        self._aside("redis-cli", "-p", str(FIRST_PORT + 1 + n), self.chance.choice(["BGSAVE", "BGREWRITEAOF"]))
        if (self.root / "pg").exists():
            port = self.started["postgres"][self.started["postgres"].index("-p") + 1]
            self._aside(
                "psql",
                "-qh",
                str(self.root / "pg"),
                "-p",
                port,
                "-U",
                "postgres",
                "-c",
                self.chance.choice(["checkpoint", "vacuum analyze t"]),
            )

    def _recycle(self) -> None:
        """One worker of a pool or a prefork server is asked to end; its master starts another."""
        name = self._some("prefork")
        children = Path(f"/proc/{self.running[name].pid}/task/{self.running[name].pid}/children").read_text().split()
        os.kill(int(self.chance.choice(children)), signal.SIGTERM)

    # Who is of the mix

    def sample(self) -> None:
        """Ends what was given its time, and notes which processes there are."""
        for until, process in list(self.old):
            if process.poll() is not None:
                self.old.remove((until, process))
            elif time.monotonic() > until:
                process.kill()
        now, sessions = boot_ns(), {p.pid for p in [*self.running.values(), *(p for _, p in self.old)]}
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                session, pid = int(stat.read_bytes().rpartition(b")")[2].split()[3]), int(stat.parent.name)
                if session in sessions:
                    first, last = self.pids.get(pid, (now, now))
                    self.pids[pid] = (first if now - last < SCAN_DELAYS_NS else now, now)

    def gone(self) -> list[str]:
        return [name for name, process in self.running.items() if process.poll() is not None]

    def end(self) -> None:
        several = [*self.running.values(), *(p for _, p in self.old)]
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in several:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, sign)
            time.sleep(2)
        for process in several:
            process.wait()


def about(finding: Mapping[str, Any], mix: Mix) -> bool:
    """Whether a finding names anything of the mix."""
    text = " ".join(str(finding.get(key) or "") for key in ("subject", "sentence", "culprit_object"))
    pids = {int(pid) for pid in re.findall(r"pid (\d+)", text)} | {finding.get("culprit_pid")}
    ports = {int(port) for port in re.findall(r":(\d+)\b", text)}
    from_ns, to_ns = finding["start_ns"] - SCAN_DELAYS_NS, finding["end_ns"] + SCAN_DELAYS_NS
    its = any(pid in mix.pids and mix.pids[pid][0] <= to_ns and mix.pids[pid][1] >= from_ns for pid in pids)
    return its or str(mix.root) in text or any(FIRST_PORT <= p < FIRST_PORT + PORTS for p in ports)


def bound(count: int) -> float:
    """The largest mean of which so few or fewer come in one of twenty trials (Poisson, upper 95 %)."""
    low, high = 0.0, 10.0 + 3.0 * count
    for _ in range(60):
        mean = (low + high) / 2
        few = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count + 1))
        low, high = (mean, high) if few > 0.05 else (low, mean)
    return high


def reported(agent: Agent, mix: Mix, from_ns: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Findings on the mix that somebody felt, those that nobody did, and how many were about others."""
    findings = [f for f in agent.json("findings")["rows"] if f["end_ns"] >= from_ns]
    mine = [f for f in findings if about(f, mix)]
    times = [(f["start_ns"] - SLACK_NS, f["end_ns"] + SLACK_NS) for f in mine]
    ops = oplog.read(mix.root / "logs")
    free, at = [], from_ns
    for start, end in [*sorted(times), (boot_ns(), 0)]:
        free += [(at, start)] if start > at else []
        at = max(at, end)
    impacts = [bool(effect.impacts(ops, time_, free)) for time_ in times]
    return (
        [f for f, was in zip(mine, impacts, strict=True) if was],
        [f for f, was in zip(mine, impacts, strict=True) if not was],
        len(findings) - len(mine),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60, help="how long [60]")
    parser.add_argument("--seed", type=int, default=1, help="of what happens when [1]")
    parser.add_argument("--times", type=float, default=1.0, help="so many times as many services [1]")
    parser.add_argument("--keep", type=Path, help="where store and logs stay afterwards, a new directory")
    given = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="tickscope-healthy-"))
    root.chmod(0o755)
    print(
        f"{os.cpu_count()} cores, Linux {os.uname().release}, load before the start {os.getloadavg()[0]:.2f}",
        flush=True,
    )
    agent = Agent(root, config="prometheus: ''\nunix_sockets: true\n")
    mix = Mix(root, given.seed, given.times)
    try:
        agent.ready()
        mix.everything()
        time.sleep(WARM_S)
        from_ns, loads = boot_ns(), []
        until, next_ = time.monotonic() + 60 * given.minutes, 0.0
        while time.monotonic() < until:
            time.sleep(0.5)
            mix.sample()
            if time.monotonic() > next_:
                mix.once()
                loads.append(os.getloadavg()[0])
                next_ = time.monotonic() + mix.chance.uniform(2, 8)
            if gone := mix.gone():
                raise SystemExit(f"{', '.join(gone)} ended by itself: {(root / f'{gone[0]}.err').read_text()[-400:]}")
        hours = mix.services * (boot_ns() - from_ns) / 3.6e12
        time.sleep(5)
        impacts, wrong, others = reported(agent, mix, from_ns)
        report(mix, hours, impacts, wrong, others, float(np.median(loads)))
    finally:
        mix.end()
        agent.stop(signal.SIGTERM)
        if given.keep:
            shutil.copytree(
                root,
                given.keep,
                ignore=shutil.ignore_patterns("*.sock", "pg", "control.sock", "intake.sock", "notices.sock"),
            )
        shutil.rmtree(root, ignore_errors=True)


def report(
    mix: Mix, hours: float, impacts: list[dict[str, Any]], wrong: list[dict[str, Any]], others: int, load: float
) -> None:
    for word, findings in (("felt", impacts), ("nobody felt", wrong)):
        for f in findings:
            print(f"{word}: {f['symptom']}, {f['cause']} {f['cause_detail'] or ''} {f['confidence']}: {f['sentence']}")
    print(f"happened: {', '.join(f'{n} {what}' for what, n in sorted(mix.happened.items()))}; median load {load:.1f}")
    print(
        "| services | service-hours | findings that somebody felt | that nobody felt | a day | upper 95 % bound a day"
        f" | about others |\n| {mix.services} | {hours:.1f} | {len(impacts)} | {len(wrong)} |"
        f" {24 * len(wrong) / hours:.2f} | {24 * bound(len(wrong)) / hours:.2f} | {others} |"
    )


if __name__ == "__main__":
    main()
