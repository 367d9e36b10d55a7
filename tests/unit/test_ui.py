"""The server of ``tickscope ui``: what it answers, to whom, and that slow or hostile clients stop nobody."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.cli.ui_server import UiServer
from tests.replayed import filled

TOKEN = "0123456789abcdef"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ui") / "store"
    filled(path, "4036-6")
    return path


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[UiServer]:
    made = UiServer(("127.0.0.1", 0), str(store), TOKEN)
    yield made
    made.close()


def ask(server: UiServer, target: str, *headers: str, host: str = "") -> tuple[int, str, bytes]:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        lines = [f"GET {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{server.port}'}", *headers, "", ""]
        client.sendall("\r\n".join(lines).encode())
        received = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), head.decode(), body


def document(server: UiServer, query: str) -> dict[str, Any]:
    status, _, body = ask(server, f"/document?token={TOKEN}&{query}")
    assert status == 200, body
    made: dict[str, Any] = json.loads(body)
    return made


def test_the_newest_time_and_a_part_of_it(server: UiServer) -> None:
    made = document(server, "length=900")
    assert [one["cause"] for one in made["findings"]] == ["poison_message"]
    assert made["live"] is False
    first = made["from_boot_s"] + made["length_s"] - 30  # where rows are
    part = document(server, f"boot={made['boot_id']}&from={first + 20}&to={first + 25}")
    assert part["length_s"] == pytest.approx(5)
    decisions = next(panel for panel in part["panels"] if panel["table"] == "limiter_decision")
    assert len(decisions["curves"][0]["values"]) == 5
    target = (
        f"/panels?token={TOKEN}&boot={made['boot_id']}&from={first}&to={first + 5}&titles=Slow system calls|Decisions"
    )
    status, _, body = ask(server, target.replace(" ", "%20"), "Accept-Encoding: gzip")
    assert status == 200
    assert {panel["table"] for panel in json.loads(gzip.decompress(body))["panels"]} <= {
        "limiter_decision",
        "slow_syscall",
    }


def test_finer_points_of_the_evidence(server: UiServer) -> None:
    made = document(server, "length=900")
    finding = made["findings"][0]
    start = made["from_boot_s"] + finding["start"]
    target = f"/panels?token={TOKEN}&boot={made['boot_id']}&from={start + 2}&to={start + 8}&findings={finding['id']}"
    status, _, body = ask(server, target)
    assert status == 200
    drawn = json.loads(body)["evidence"][finding["id"]]
    assert {one["title"] for one in drawn} <= {one["title"] for one in finding["panels"]}
    assert [value for value in drawn[0]["curves"][0]["values"] if value], "six seconds of redelivered messages"
    assert len(drawn[0]["curves"][0]["values"]) == 6
    status, _, body = ask(server, f"/panels?token={TOKEN}&boot={made['boot_id']}&from=1&to=2&findings=%27x,--")
    assert status == 200
    assert json.loads(body)["evidence"] == {}


def test_only_what_has_a_name(server: UiServer) -> None:
    made = document(server, "length=900&words=LAB:API-TLS")
    names = {panel["title"] for panel in made["panels"]} | {c["name"] for p in made["panels"] for c in p["curves"]}
    assert any("lab:api-tls" in name for name in names)
    assert not any("redis" in name for name in names)
    assert made["findings"] == []
    made = document(server, "length=900&words=lab-api-redis-f")  # a process
    assert {"tcp_rtt", "limiter_decision"} <= {panel["table"] for panel in made["panels"]}


@pytest.mark.parametrize(
    ("target", "headers", "host", "status"),
    [
        ("/", (), "", 403),
        ("/?token=wrong", (), "", 403),
        ("/document?length=60", (), "", 403),
        (f"/?token={TOKEN}", (), "", 200),
        (f"/document?token={TOKEN}&length=60", ("Origin: http://evil.example",), "", 403),
        (f"/document?token={TOKEN}&length=60", ("Sec-Fetch-Site: cross-site",), "", 403),
        (f"/document?token={TOKEN}&length=60", ("Sec-Fetch-Site: same-site",), "", 403),
        (f"/?token={TOKEN}", (), "evil.example", 421),  # DNS rebinding
        ("/../../../etc/passwd", (), "", 404),
        ("/%2e%2e/report.py", (), "", 404),
        ("/page.js/../ui.py", (), "", 404),
        ("/page.js", (), "", 200),
        (f"/document?token={TOKEN}", (), "", 400),
        (f"/document?token={TOKEN}&length=nan", (), "", 400),
        (f"/document?token={TOKEN}&boot=x'%20OR%20true&from=1&to=2", (), "", 400),
        (f"/document?token={TOKEN}&boot={'0' * 36}&from=2&to=1", (), "", 400),
        (f"/document?token={TOKEN}&boot={'0' * 36}&from=1&to=2", (), "", 200),  # no such boot: no rows
        (f"/document?token={TOKEN}&length=60&words=%27%20OR%20true--", (), "", 200),
        (f"/panels?token={TOKEN}&length=60&titles=none", (), "", 200),
    ],
)
def test_who_gets_an_answer(server: UiServer, target: str, headers: tuple[str, ...], host: str, status: int) -> None:
    got, head, _ = ask(server, target, *headers, host=host)
    assert got == status
    if status == 200:
        assert "script-src 'self'" in head and "unsafe-inline" not in head and "no-referrer" in head


def test_it_only_reads(server: UiServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), 10) as client:
        client.sendall(b"POST /document HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 405")


def test_a_thousand_slow_clients_keep_nobody_out(server: UiServer) -> None:
    slow = []
    try:
        for _ in range(1000):
            client = socket.create_connection(("127.0.0.1", server.port), 10)
            client.send(b"GET / HT")
            slow.append(client)
        deadline = time.monotonic() + 10
        while True:  # theirs end after two seconds
            try:
                status, _, _ = ask(server, f"/?token={TOKEN}")
                break
            except (OSError, IndexError):
                assert time.monotonic() < deadline
        assert status == 200
    finally:
        for client in slow:
            client.close()


@contextlib.contextmanager
def started(store: Path) -> Iterator[subprocess.Popen[str]]:
    verb = [sys.executable, "-c", "from agent.cli.main import main; main()", "ui", "--store", str(store)]
    with subprocess.Popen([*verb, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True) as ui:
        try:
            yield ui
        finally:
            ui.kill()


def test_the_verb(store: Path) -> None:
    with started(store) as ui:
        assert ui.stdout is not None
        url = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{32})\n", ui.stdout.readline())
        assert url is not None
        with socket.create_connection(("127.0.0.1", int(url[1])), 10) as client:
            client.sendall(f"GET /?token={url[2]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")
        ui.send_signal(signal.SIGINT)
        assert ui.wait(10) == 0


def test_root_becomes_the_owner_of_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    filled(path, "0020-0")
    for file in [path, *path.rglob("*")]:
        os.chown(file, 65534, 65534)
    for parent in [tmp_path, *tmp_path.parents]:
        if not parent.stat().st_mode & 1:  # pytest's directories are its user's
            parent.chmod(0o755)
    with started(path) as ui:
        assert ui.stdout is not None
        port, token = re.findall(r":(\d+)/\?token=(\w+)", ui.stdout.readline())[0]
        assert re.search(r"Uid:\t65534\t65534\t65534", Path(f"/proc/{ui.pid}/status").read_text())
        with socket.create_connection(("127.0.0.1", int(port)), 10) as client:
            target = f"/document?token={token}&length=60"
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("listen", ["0.0.0.0:9470", "192.0.2.1:80", "[::]:9470", "example.org:80"])
def test_only_on_loopback(store: Path, listen: str) -> None:
    verb = [sys.executable, "-c", "from agent.cli.main import main; main()", "ui", "--store", str(store)]
    done = subprocess.run([*verb, "--listen", listen], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert f"--listen {listen}" in done.stderr
