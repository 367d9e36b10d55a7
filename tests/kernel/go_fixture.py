"""Builds the Go test programs once, into a cache directory, and runs them with their own account of what they did."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.binaries import gofacts

PROGRAMS = Path(__file__).parent / "goprograms"
PROGRAM = PROGRAMS / "limits"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "/var/tmp")) / "tickscope-go-tests"
DEBIAN_GOPATH = Path("/usr/share/gocode")


def go_minor() -> int:
    text = subprocess.run(["go", "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout
    match = re.match(r"go1\.(\d+)", text)
    return int(match[1]) if match else 99


def go_of(version: str) -> str:
    """The go command of a release, from the module proxy. Not by GOTOOLCHAIN, which Go before 1.21 (Debian 12's) does
    not know.
    """
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
    module = f"golang.org/toolchain@v0.0.1-{version}.linux-{arch}"
    done = subprocess.run(
        ["go", "mod", "download", "-json", module], cwd="/", capture_output=True, text=True, check=False
    )
    reported = json.loads(done.stdout or "{}")
    if "Dir" not in reported:
        pytest.skip(f"cannot get {version}: {(reported.get('Error') or done.stderr)[-200:]}")
    root = Path(reported["Dir"])
    for program in [*root.glob("bin/*"), *root.glob("pkg/tool/*/*")]:
        program.chmod(0o755)
    return str(root / "bin/go")


#: Arguments by kind; of those that C takes part in, too.
_ARGS = {
    "stripped": ["-ldflags=-s -w"],
    "older": ["-modfile=older.mod", "-tags=older"],
    "oldest": ["-modfile=oldest.mod", "-tags=older"],
    "2018": ["-modfile=before.mod"],
    "2019": ["-modfile=first.mod"],
    "2019noopt": ["-modfile=first.mod", "-gcflags=all=-N -l"],
    "2022": ["-modfile=second.mod"],
    "noopt": ["-gcflags=all=-N -l"],
}
_CGO = {
    "race": ["-race"],
    "cgo": ["-ldflags=-linkmode=external"],
    "piecgo": ["-ldflags=-linkmode=external"],
    "shared": ["-buildmode=c-shared"],
}
#: By whom a kind is built, where the current Go would lay it out otherwise.
_OLDER = {"piecgo": "go1.21.13"}


def _build(out: Path, program: str, kind: str, toolchain: str, pie: bool) -> str:
    """Builds from the module proxy, else offline from Debian's package; what went wrong, or an empty text."""
    args = (_ARGS | _CGO).get(kind, [])
    env = os.environ | {"CGO_ENABLED": str(int(kind in _CGO))}
    go = go_of(toolchain) if toolchain else "go"
    if toolchain:
        env |= {"GOTOOLCHAIN": "local", "GOFLAGS": "", "GOENV": "off"}
    old = ["-modfile=old.mod"] if program == "limits" and (toolchain or go_minor() < 26) else []
    mode = ["-buildmode=pie"] if pie else []
    done = subprocess.run(
        [go, "build", *old, *mode, *args, "-o", str(out), "."],
        cwd=PROGRAMS / program,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    if (
        done.returncode
        and program == "limits"
        and not toolchain
        and (DEBIAN_GOPATH / "src/golang.org/x/time/rate").is_dir()
    ):
        env |= {"GO111MODULE": "off", "GOPATH": str(DEBIAN_GOPATH), "GOFLAGS": ""}
        done = subprocess.run(
            ["go", "build", *mode, *args, "-o", str(out), "."],
            cwd=PROGRAMS / program,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stderr if done.returncode else ""


def go_binary(kind: str = "plain", program: str = "limits") -> Path:
    """A build of a program: ``plain``, ``pie``, ``stripped`` (by the linker), ``piestripped`` (by strip), ``noopt``
    (neither optimised nor inlined), ``race``, ``cgo`` (linked with libc by the system's linker), ``piecgo`` (both, as
    distributions build; its function table has no section of its own), ``shared`` (a library for C), or ``go1.NN.MM``;
    of ``libraries``, ``older`` and ``oldest`` have older versions of them; of ``limits``, ``2018`` and ``2019`` have a
    type whose fields lay elsewhere, and they and ``2022`` no ``wait`` yet.

    Skips where there is no Go, or no toolchain of that version to be had; a current Go that cannot build is a failure.
    """
    if not shutil.which("go"):
        pytest.skip("needs Go: apt install golang")
    sources = b"".join(path.read_bytes() for path in sorted((PROGRAMS / program).rglob("*.*")))
    version = subprocess.run(["go", "version"], check=True, capture_output=True).stdout
    out = CACHE / hashlib.sha256(sources + version).hexdigest()[:16] / f"{program}-{kind}"
    if out.exists():
        return out
    out.parent.mkdir(parents=True, exist_ok=True)
    fresh = out.with_name(f".{os.getpid()}-{out.name}")
    toolchain = kind if kind.startswith("go1") else _OLDER.get(kind, "")
    problem = _build(fresh, program, kind, toolchain, kind.startswith("pie"))
    assert not problem, problem
    if kind == "piestripped":
        subprocess.run(["strip", str(fresh)], check=True)
    fresh.rename(out)
    return out


def go_program(folder: Path, main: str, *flags: str) -> Path:
    """A program of this ``main.go`` and of what lies in the folder, the module example.com/shop. Skips without Go."""
    if not shutil.which("go"):
        pytest.skip("needs Go: apt install golang")
    (folder / "main.go").write_text(main)
    (folder / "go.mod").write_text("module example.com/shop\n\ngo 1.18\n")
    env = os.environ | {"CGO_ENABLED": "0"}
    subprocess.run(["go", "build", *flags, "-o", "shop", "."], cwd=folder, env=env, check=True)
    return folder / "shop"


@dataclass
class Limits:
    """A running test program. ``go`` lets it begin and returns its decisions; ``end`` lets it exit."""

    process: subprocess.Popen[str]

    @classmethod
    def start(cls, binary: Path, mode: str, count: int, *, at_once: bool = False, **environ: str) -> Limits:
        args = [str(binary), mode, str(count), *(["now"] if at_once else [])]
        env = os.environ | environ
        return cls(subprocess.Popen(args, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env))

    @property
    def pid(self) -> int:
        return self.process.pid

    def begin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def go(self) -> list[dict[str, Any]]:
        self.begin()
        return self.truth()

    def truth(self) -> list[dict[str, Any]]:
        assert self.process.stdout is not None
        reported = json.loads(self.process.stdout.readline())
        assert reported["pid"] == self.pid
        return list(reported["decisions"])

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(10) == 0


def analyze(fd: int) -> Any:
    """What the ELF analyzer says of the one library that these programs have, and of others; None where it says
    nothing.
    """
    found = gofacts.analyze(fd)
    if found is None:
        return None
    assert len(found.probed) <= 1
    return SimpleNamespace(**vars(found.probed[0] if found.probed else gofacts.Probed(state="")), others=found.others)
