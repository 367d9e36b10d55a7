"""Programs that cannot be probed are reported: what the ELF analyzer finds in real ones."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from agent.binaries import openssl
from tests.kernel import go_fixture as gofacts
from tests.kernel.go_fixture import PROGRAM, go_binary, go_program

STATIC = (
    "#include <unistd.h>\n#include <openssl/ssl.h>\n#include <openssl/crypto.h>\nint main(int n, char **a) { if (n > 1)"
    " { pause(); } SSL_CTX *c = SSL_CTX_new(TLS_method()); SSL *s = SSL_new(c); return SSL_do_handshake(s) +"
    " !OpenSSL_version(0)[0]; }"
)


def facts_of(path: Path) -> dict[str, object] | None:
    with path.open("rb") as file:
        return openssl.facts([file.fileno()], program=True)


def static_openssl(out: Path) -> None:
    """Builds a program that has OpenSSL in itself, and sleeps where it is given an argument."""
    if not list(Path("/usr/lib").glob("*-linux-gnu/libssl.a")):
        pytest.fail("needs libssl-dev")
    others = [
        f"-l:{name}" for name in ("libz.so.1", "libzstd.so.1") if list(Path("/usr/lib").glob(f"*-linux-gnu/{name}"))
    ]  # Debian 13's libcrypto
    subprocess.run(
        ["gcc", "-x", "c", "-", "-o", out, "-l:libssl.a", "-l:libcrypto.a", *others, "-ldl", "-lpthread"],
        input=STATIC,
        text=True,
        check=True,
    )


def go_for(out: Path, processor: str = "386") -> None:
    """Builds the program with limiters for another processor."""
    if not shutil.which("go"):
        pytest.skip("needs Go: apt install golang")
    env = os.environ | {"GOARCH": processor, "CGO_ENABLED": "0"}
    mods = [[], ["-modfile=old.mod"]]
    done = [
        subprocess.run(
            ["go", "build", *mod, "-o", out, "."], cwd=PROGRAM, env=env, capture_output=True, text=True, check=False
        )
        for mod in mods
        if not out.exists()
    ]
    assert out.exists(), done[-1].stderr


def test_openssl_in_a_stripped_program(tmp_path: Path) -> None:
    out = tmp_path / "static"
    static_openssl(out)
    whole = facts_of(out)
    assert whole is not None and len(whole["sites"]) >= 2  # type: ignore[arg-type]
    subprocess.run(["strip", out], check=True)
    version = subprocess.run(["openssl", "version"], capture_output=True, text=True, check=True).stdout.split()[1]
    assert facts_of(out) == {"hidden": version}
    assert facts_of(Path(shutil.which("openssl") or "")) is None  # it uses the shared library


def test_a_32_bit_go_program(tmp_path: Path) -> None:
    out = tmp_path / "limits32"
    go_for(out)
    with out.open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    assert (found.state, "32-bit Go" in found.reason, found.remedy) == (
        "unavailable",
        True,
        "build it with GOARCH=amd64",
    )


def test_a_go_program_of_another_processor(tmp_path: Path) -> None:
    out = tmp_path / "limits-arm"
    go_for(out, "arm64")
    with out.open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    assert (found.state, found.reason, found.remedy) == (
        "unavailable",
        "limiter probes are made for x86-64 only",
        "build it with GOARCH=amd64",
    )


OTHER = (
    'package main\n\nimport (\n\t"example.com/shop/httprate"\n\t"example.com/shop/ratelimit"\n)\n\nfunc main() {'
    " println(ratelimit.Take(), httprate.Take()) }\n"
)
PACKAGE = "package {}\n\nvar n int\n\n//go:noinline\nfunc Take() int {{ n++; return n }}\n"


def test_other_limiters_of_a_go_program(tmp_path: Path) -> None:
    for name in ("httprate", "ratelimit"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "take.go").write_text(PACKAGE.format(name))
    with go_program(tmp_path, OTHER, "-ldflags=-s -w").open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    assert (found.state, found.others) == ("", ["example.com/shop/httprate", "example.com/shop/ratelimit"])
    with go_binary().open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    assert (found.state, found.others) == ("attached", [])


def test_the_version_of_a_program_whose_build_information_has_none(tmp_path: Path) -> None:
    """The path of the sources has it, which go build wrote; by GOPATH there is none, which is reported."""
    data = go_binary().read_bytes()
    with go_binary().open("rb") as file:
        whole = gofacts.analyze(file.fileno())
    assert whole is not None
    bare = tmp_path / "bare"
    bare.write_bytes(data.replace(b"dep\tgolang.org/x/time\t", b"dep\tgolang.org/y/time\t"))
    with bare.open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    if f"@{whole.library_version}/".encode() in data:
        assert found.library_version == whole.library_version != ""
    else:
        assert "version not recorded" in found.unversioned
    gopath = tmp_path / "gopath"
    gopath.write_bytes(bare.read_bytes().replace(b"golang.org/x/time@v", b"golang.org/x/time/v"))
    with gopath.open("rb") as file:
        found = gofacts.analyze(file.fileno())
    assert found is not None
    assert found.library_version == "" and "version not recorded" in found.unversioned
