"""Real time daemons that cannot touch the clock: chronyd -x, ntpd; both without CAP_SYS_TIME, in network namespaces of
their own.

None of them is installed for the tests: Debian allows one time daemon a machine, so installing ours would remove the
one that keeps this host's clock.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from agent.lab.stage.netns import Namespace

CACHE = Path(os.environ.get("TICKSCOPE_TEST_CACHE", Path.home() / ".cache/tickscope-tests"))
_POWERLESS = ("setpriv", "--bounding-set=-sys_time", "--inh-caps=-sys_time")


@cache
def _unpacked(*packages: str) -> Path:
    """A folder with the files of these Debian packages, kept for the next run; what libraries they need came with BCC
    and qemu. Skips where they cannot be fetched.
    """
    root = CACHE / f"debian-{'-'.join(packages)}"
    if root.exists():
        return root
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as fresh:
        for package in packages:
            got = subprocess.run(["apt-get", "-qq", "download", package], cwd=fresh, capture_output=True, text=True)
            found = next(Path(fresh).glob(f"{package}_*.deb"), None)
            if got.returncode or found is None:
                pytest.skip(f"cannot fetch Debian's {package}: {got.stderr.strip().splitlines()[-1:]}")
            subprocess.run(["dpkg-deb", "-x", str(found), f"{fresh}/root"], check=True)
        Path(fresh, "root").rename(root)
    return root


def chrony(program: str) -> str:
    """The path of chronyd or chronyc: this host's, else Debian's. Skips where there is neither."""
    return shutil.which(program) or next(str(p) for p in _unpacked("chrony").glob(f"usr/*bin/{program}"))


@cache
def _ntpsec() -> Path:
    root = _unpacked("ntpsec", "python3-ntp")
    library = next(root.glob("usr/lib/*/ntp/libntpc.so"))
    place = root / "usr/lib/python3/dist-packages/ntp/libntpc.so"  # where ntpq looks first, before an installed one's
    if not place.is_symlink():
        place.symlink_to(library)
    return root


class Daemon:
    """A daemon in a namespace, killed by ``stop``."""

    def __init__(self, space: Namespace, command: list[str], log: Path) -> None:
        self.space = space
        with space.entered(), log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*_POWERLESS, *command], stdin=subprocess.DEVNULL, stdout=errors, stderr=errors
            )

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def chronyd(space: Namespace, home: Path, name: str, settings: str) -> Daemon:
    """chronyd with these lines of chrony.conf, its command port on loopback 323 unless they say otherwise."""
    config = home / f"{name}.conf"
    port = "" if "cmdport" in settings else "cmdport 323\n"
    config.write_text(
        f"{settings}\n{port}bindcmdaddress 127.0.0.1\nbindcmdaddress /\npidfile {home}/{name}.pid\nuser root\n"
    )
    return Daemon(space, [chrony("chronyd"), "-x", "-d", "-f", str(config)], home / f"{name}.log")


def chronyc(space: Namespace, report: str) -> list[list[str]]:
    """The comma-separated lines of a report."""
    return [
        line.split(",")
        for line in space.run(chrony("chronyc"), "-n", "-c", "-h", "127.0.0.1", "-p", "323", report).splitlines()
    ]


def ntpd(space: Namespace, home: Path, settings: str) -> Daemon:
    """NTPsec's ntpd with these lines of ntp.conf."""
    config = home / "ntp.conf"
    config.write_text(settings + "\n")
    return Daemon(space, [str(_ntpsec() / "usr/sbin/ntpd"), "-n", "-c", str(config)], home / "ntpd.log")


def ntpq(space: Namespace, *commands: str) -> str:
    """What ntpq prints of these commands."""
    root = _ntpsec()
    env = {**os.environ, "PYTHONPATH": str(root / "usr/lib/python3/dist-packages")}
    arguments = [part for command in commands for part in ("-c", command)]
    with space.entered():
        return subprocess.run(
            ["/usr/bin/python3", str(root / "usr/bin/ntpq"), "-n", *arguments, "127.0.0.1"],
            env=env,
            check=True,
            capture_output=True,
            text=True,
            timeout=30,
        ).stdout
