"""Programs of other Debian releases, run with their own dynamic linker.

Downloaded once with apt into a directory of its own (TICKSCOPE_TEST_CACHE, else the user's cache); a test is skipped
where there is no archive to be had.
"""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("TICKSCOPE_TEST_CACHE", Path.home() / ".cache/tickscope-tests"))


def archive() -> str:
    """The archive that this host's own release comes from, by apt's sources; other releases are there too."""
    own = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [line.partition(" ")[2] for line in listed.stdout.splitlines() if line.partition(" ")[0] == own]
    if not found:
        pytest.skip(f"apt's sources have no archive of {own or 'this system'}")
    return found[0]


def unpacked(name: str, release: str, packages: tuple[str, ...]) -> Path:
    """The directory ``name`` of the cache, with these packages of the release, and no others, unpacked."""
    root = CACHE / name
    if (root / "done").exists():
        return root
    apt = root / "apt"
    for part in ("lists/partial", "cache/archives/partial", "debs"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    key = "/usr/share/keyrings/debian-archive-keyring.gpg"
    (apt / "sources.list").write_text(f"deb [signed-by={key}] {archive()} {release} main\n")
    settings = {
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": apt / "lists",
        "Dir::Cache": apt / "cache",
        "Dir::State::status": apt / "status",
        "APT::Sandbox::User": "root",
    }
    options = [word for setting, value in settings.items() for word in ("-o", f"{setting}={value}")]
    for command in (["update"], ["download", *packages]):
        done = subprocess.run(
            ["apt-get", "-q", *options, *command], cwd=apt / "debs", capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"cannot fetch {release}: {done.stderr.strip().splitlines()[-1:]}")
    for package in (apt / "debs").glob("*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    (root / "done").touch()
    return root


def program(root: Path, path: str) -> list[str]:
    """The beginning of a command line that runs this program of an unpacked release."""
    libraries = [str(d) for d in (root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu") if d.is_dir()]
    linker = next(p for p in root.rglob("ld-*.so*") if p.is_file() and not p.is_symlink())
    return [str(linker), "--library-path", ":".join(libraries), str(root / path)]
