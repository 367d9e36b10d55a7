"""A root of a Debian release with systemd as process 1, by systemd-nspawn. BPF is allowed, the network is its
own."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.patience import PATIENCE
from tests.releases import archive

_ENVIRONMENT = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")


def make_root(suite: str, packages: str, root: Path, *commands: str) -> None:
    """Makes a root with these packages, and runs shell commands in it, with the network."""
    hooks = [f"--customize-hook=chroot $1 sh -ec '{command}'" for command in commands]
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=apt", f"--include={packages}", *hooks, suite, root, archive()], check=True
    )


class Booted:
    """with Booted(root) as host: host.run("systemctl status")."""

    def __init__(self, root: Path) -> None:
        self.root, self.pid = root, 0

    def __enter__(self) -> Booted:
        allowed = [f"--system-call-filter={call}" for call in ("bpf", "perf_event_open")]
        own = ["--private-network", "--register=no", "--keep-unit", "--capability=all"]
        self._nspawn = subprocess.Popen(
            ["systemd-nspawn", "-q", "-D", self.root, "--boot", *own, *allowed],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        end_s = time.monotonic() + 60 * PATIENCE
        while time.monotonic() < end_s and self._nspawn.poll() is None:
            children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
            self.pid = int(children[0]) if children else 0
            if self.pid and self.run("systemctl is-system-running", check=False).strip() in ("running", "degraded"):
                return self
            time.sleep(0.5)
        self.__exit__(None, None, None)
        raise AssertionError(f"{self.root} did not boot")

    def __exit__(self, *_: object) -> None:
        self._nspawn.terminate()  # systemd powers off
        try:
            self._nspawn.wait(60 * PATIENCE)
        except subprocess.TimeoutExpired:
            os.kill(self.pid or self._nspawn.pid, signal.SIGKILL)
            self._nspawn.wait()

    def run(self, command: str, *, check: bool = True) -> str:
        """Output of a shell command in the root, with its errors."""
        enter = ["nsenter", "-t", str(self.pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w", "--"]
        done = subprocess.run(
            [*enter, "env", "-i", *_ENVIRONMENT, "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        return done.stdout
