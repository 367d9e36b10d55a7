"""Programs with limiters of their own, in C, C++, Rust and Go, built once; and what they say of their decisions."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.kernel.go_fixture import CACHE

SOURCES = Path(__file__).parent / "ownprograms"
_RUSTC = shutil.which("rustc", path=f"{os.environ.get('PATH', '')}:{Path.home()}/.cargo/bin")
_HOW: dict[str, tuple[str, list[str], str]] = {
    "c": ("gcc", ["-O2"], "window.c"),
    "c, fixed": ("gcc", ["-O1", "-no-pie", "-fno-pie"], "window.c"),
    "library": ("gcc", ["-O2", "-shared", "-fPIC", "-DLIBRARY"], "window.c"),
    "c++": ("g++", ["-O2"], "bucket.cc"),
    "rust": (_RUSTC or "", ["-O"], "spacing.rs"),
    "rust, v0": (_RUSTC or "", ["-O", "-Csymbol-mangling-version=v0"], "spacing.rs"),
    "go": ("go", [], "window"),
    "go, stripped": ("go", ["-ldflags=-s -w"], "window"),
}


@cache
def built(kind: str) -> Path:
    """The program, or the shared library."""
    compiler, flags, source = _HOW[kind]
    if not compiler or not shutil.which(compiler):
        pytest.skip(f"needs {kind}'s compiler: apt install gcc g++ rustc golang")
    texts = sorted((SOURCES / source).iterdir()) if (SOURCES / source).is_dir() else [SOURCES / source]
    digest = hashlib.sha256(repr([compiler, flags, *(path.read_text() for path in texts)]).encode()).hexdigest()[:16]
    out = CACHE / f"own-{digest}{'.so' if kind == 'library' else ''}"
    if not out.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        made = out.with_suffix(f".{os.getpid()}")
        if compiler == "go":
            subprocess.run(
                ["go", "build", *flags, "-o", str(made), "."],
                cwd=SOURCES / source,
                check=True,
                env=os.environ | {"CGO_ENABLED": "0", "GOWORK": "off"},
            )
        else:
            subprocess.run([compiler, *flags, "-o", str(made), str(SOURCES / source)], check=True)
        made.rename(out)
    return out


def copy(kind: str, to: Path, strip: bool = False) -> Path:
    """Of a build, for one test alone: a new inode."""
    path = Path(shutil.copy(built(kind), to))
    if strip:
        subprocess.run(["strip", "-s", str(path)], check=True)
    return path


def linked(library: Path, to: Path) -> Path:
    """The program without its limiter, which it finds in a shared library."""
    subprocess.run(
        [
            "gcc",
            "-O2",
            "-DPROGRAM",
            "-o",
            str(to),
            str(SOURCES / "window.c"),
            str(library),
            f"-Wl,-rpath,{library.parent}",
        ],
        check=True,
    )
    return to


def address(program: Path, name: str) -> int:
    """Of a function, as nm prints it."""
    lines = subprocess.run(["nm", str(program)], check=True, capture_output=True, text=True).stdout.splitlines()
    return next(int(line.split()[0], 16) for line in lines if line.endswith(f" {name}"))


class OwnProgram:
    """A program that runs, and decides when it is asked to."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.child = subprocess.Popen([str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.child.stdout is not None
        assert self.child.stdout.readline() == "ready\n"
        self.pid = self.child.pid

    def go(self, count: int) -> list[list[str]]:
        """What it says of so many calls, in order: a list of words each."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        self.child.stdin.write(f"{count}\n")
        self.child.stdin.flush()
        found = list[list[str]]()
        while (line := self.child.stdout.readline()) != "done\n":
            assert line, "the program ended"
            found.append(line.rstrip("\n").split(" "))
        return found

    def end(self) -> int:
        """Its exit status: 0, whatever was attached to it."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        return self.child.wait(30)
