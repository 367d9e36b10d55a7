"""Debian's kernels: fetched by package name, cached, and packed with a small initramfs. Needs apt, dpkg-deb and xz; no
root.
"""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tickscope/kernels"
#: The harness's name of a kernel -> the suite whose linux-image-amd64 it is.
SUITES = {"5.10": "bullseye", "6.1": "bookworm", "6.12": "trixie", "newest": "sid"}
#: With what they depend on. Loaded in this order by tests/vm/init; those that a kernel has built in, or does not have,
#: are left out.
MODULES = [
    "virtio_pci",
    "virtio_rng",
    "9pnet_virtio",
    "9p",
    "overlay",
    "tun",
    "veth",
    "dummy",
    "sch_netem",
    "crc32c_generic",
    "nf_tables",
    "tcp_diag",
    "udp_diag",
    "unix_diag",
]


class Unavailable(Exception):
    """A kernel, or a tool that fetches or boots it, cannot be had here."""


@dataclass(frozen=True)
class Kernel:
    """A kernel that can be booted. ``release`` as uname -r says it."""

    name: str
    release: str
    image: Path
    initramfs: Path


def _run(*command: str, cwd: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Unavailable(f"{command[0]} is not installed") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(command[:2])}: {done.stderr.strip()[-400:]}")
    return done.stdout


class Apt:
    """apt with sources, lists and downloads of its own: this host's mirrors, another suite. The host's apt is left as
    it is.
    """

    def __init__(self, suite: str, root: Path) -> None:
        for folder in ("lists/partial", "archives/partial"):
            (root / folder).mkdir(parents=True)
        entries = []
        format_ = "$(REPO_URI) $(RELEASE)"
        for line in sorted(
            set(_run("apt-get", "indextargets", "--format", format_, "Created-By: Packages").splitlines())
        ):
            uri, here = line.split()
            if (
                "debian" not in uri
                or here.endswith(("-updates", "-backports"))
                or (here.endswith("-security") and suite == "sid")
            ):
                continue
            entries.append(
                f"deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {uri} {suite}"
                f"{'-security' * here.endswith('-security')} main"
            )
        if not entries:
            raise Unavailable("apt has no Debian mirror configured")
        (root / "sources.list").write_text("\n".join(entries) + "\n")
        self.root = root
        self.options = [
            "-o",
            f"Dir::Etc::sourcelist={root}/sources.list",
            "-o",
            "Dir::Etc::sourceparts=-",
            "-o",
            f"Dir::State::lists={root}/lists",
            "-o",
            f"Dir::Cache={root}",
            "-o",
            "Dir::State::status=/dev/null",
            "-o",
            "APT::Sandbox::User=root",
            "-o",
            "Acquire::Check-Valid-Until=false",  # a mirror may be behind
            "-o",
            "Acquire::Languages=none",
            "-o",
            "APT::Architecture=amd64",
        ]
        _run("apt-get", *self.options, "-qq", "update")

    def depends(self, package: str) -> list[str]:
        text = _run("apt-cache", *self.options, "show", "--no-all-versions", package)
        found = re.search(r"^Depends: (.*)", text, re.MULTILINE)
        return re.findall(r"(?:^|, )([^ ,]+)", found[1]) if found else []

    def download(self, packages: list[str], to: Path) -> None:
        _run("apt-get", *self.options, "-qq", "download", *packages, cwd=to)


def _fetch(name: str, to: Path) -> None:
    """Downloads the packages of a kernel and busybox into an empty folder."""
    with tempfile.TemporaryDirectory(prefix="tickscope-apt-") as scratch:
        apt = Apt(SUITES[name], Path(scratch))
        image = next(p for p in apt.depends("linux-image-amd64") if p.startswith("linux-image-"))
        parts = [
            p for p in apt.depends(image) if p.startswith(("linux-modules-", "linux-binary-"))
        ]  # Debian 14 splits the package
        apt.download([image, *parts, "busybox-static"], to)


def _modules(tree: Path, scratch: Path) -> Iterator[tuple[str, bytes]]:
    """(name, object) of the wanted modules and what they need, each after what it needs."""
    files = {p.name.split(".")[0].replace("-", "_"): p for p in tree.rglob("*.ko*")}
    seen: set[str] = set()

    def take(name: str) -> Iterator[tuple[str, bytes]]:
        if name in seen or name not in files:
            return
        seen.add(name)
        shutil.copy(files[name], scratch / files[name].name)
        if files[name].suffix == ".xz":
            _run("xz", "-d", files[name].name, cwd=scratch)
        data = (scratch / files[name].name.removesuffix(".xz")).read_bytes()
        needs = re.search(rb"\0depends=([^\0]*)\0", data)
        for other in needs[1].decode().split(",") if needs else []:
            yield from take(other.replace("-", "_"))
        yield name, data

    for wanted in MODULES:
        yield from take(wanted)


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An initramfs archive (newc; Documentation/driver-api/early-userspace/buffer-format.rst) of path -> (mode,
    content).
    """
    out = bytearray()
    for inode, (path, (mode, data)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))], 1):
        name = path.encode() + b"\0"
        fields = (inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % f for f in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def _initramfs(tree: Path, scratch: Path) -> bytes:
    folder, program = 0o040755, 0o100755
    files = dict.fromkeys(("bin", "dev", "proc", "sys", "lower", "rw", "root", "modules"), (folder, b""))
    files["bin/busybox"] = (
        program,
        next(p for p in (tree / "bin/busybox", tree / "usr/bin/busybox") if p.exists()).read_bytes(),
    )
    files["init"] = (program, Path(__file__).with_name("init").read_bytes())
    modules = dict(_modules(tree, scratch))
    files.update({f"modules/{i:02d}-{name}.ko": (0o100644, data) for i, (name, data) in enumerate(modules.items())})
    packed = gzip.compress(cpio(files), 1)
    return packed + bytes(-len(packed) % 4)  # another archive may follow


def get(name: str) -> Kernel:
    """A kernel of SUITES, from the cache or fetched into it. Raises Unavailable."""
    if name not in SUITES:
        raise Unavailable(f"no kernel named {name}; there are {', '.join(SUITES)}")
    home = CACHE / name
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "debs").exists():
            with tempfile.TemporaryDirectory(dir=home) as fresh:
                _fetch(name, Path(fresh))
                shutil.copytree(fresh, home / "debs")
        init = Path(__file__).with_name("init").read_bytes()
        initramfs = home / f"initramfs-{hashlib.sha256(' '.join(MODULES).encode() + init).hexdigest()[:12]}"
        if not initramfs.exists():
            _build(home, initramfs)
        return Kernel(name, (home / "release").read_text(), home / "vmlinuz", initramfs)


def _build(home: Path, initramfs: Path) -> None:
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        tree = Path(scratch) / "tree"
        for deb in sorted((home / "debs").glob("*.deb")):
            _run("dpkg-deb", "-x", str(deb), str(tree))
        image = next(p for p in tree.rglob("vmlinuz*") if p.is_file())
        release = next(p.parent.name for p in tree.rglob("kernel") if p.parent.parent.name == "modules")
        shutil.copy(image, home / "vmlinuz")
        (home / "release").write_text(release)
        packed = Path(scratch) / "initramfs"
        packed.write_bytes(_initramfs(tree, Path(scratch)))
        for old in home.glob("initramfs-*"):
            old.unlink()
        packed.rename(initramfs)
