"""nginx and HAProxy tell what they decide in their logs, and nginx's Lua by itself, straight to the intake: each answer
once, and no request waits for it.
"""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.patience import PATIENCE, listening
from tests.ports import free_port
from tests.unit.adapters import ADAPTERS, Reported, columns, hashed

NGINX = """
daemon off;
worker_processes 1;
pid {place}/nginx.pid;
error_log {place}/error.log;
events {{ worker_connections 64; }}
http {{
    limit_req_zone $binary_remote_addr zone=api:1m rate=1r/m;
    client_body_temp_path {place}/1; proxy_temp_path {place}/2; fastcgi_temp_path {place}/3;
    uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
    include {place}/tickscope.conf;
    server {{
        listen 127.0.0.1:{port};
        server_name shop;
        location / {{ return 200 "unlimited"; }}
        location /api {{ limit_req zone=api burst=4 nodelay; limit_req_status 429; alias {place}/; }}
    }}
}}
"""

#: A limiter of a few lines, five a minute of each address: what a program in Lua has.
NGINX_LUA = """
daemon off;
worker_processes 1;
pid {place}/nginx.pid;
error_log {place}/error.log;
load_module {modules}/ndk_http_module.so;
load_module {modules}/ngx_http_lua_module.so;
events {{ worker_connections 64; }}
http {{
    lua_package_path "{place}/?.lua;;";
    lua_shared_dict asked 1m;
    client_body_temp_path {place}/1; proxy_temp_path {place}/2; fastcgi_temp_path {place}/3;
    uwsgi_temp_path {place}/4; scgi_temp_path {place}/5;
    server {{
        listen 127.0.0.1:{port};
        location /api {{
            access_by_lua_block {{
                local key = ngx.var.remote_addr
                local left = 5 - ngx.shared.asked:incr(key, 1, 0, 60)
                local refused = left < 0
                require("tickscope").report("lua shop", refused and "refused" or "allowed",
                    {{ key = key, burst = 5, remaining = left, window_ns = 60e9 }})
                if refused then return ngx.exit(429) end
            }}
            alias {place}/;
        }}
    }}
}}
"""
MODULES = Path("/usr/lib/nginx/modules")


@contextlib.contextmanager
def served(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        try:
            listening(port, process=server)
            yield server
        finally:
            server.send_signal(signal.SIGTERM)


def nginx(place: Path, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    reported = (ADAPTERS / "nginx.conf").read_text().replace("/run/tickscope/", f"{place}/")
    (place / "tickscope.conf").write_text(reported)
    (place / "nginx.conf").write_text(NGINX.format(place=place, port=port))
    (place / "pay").write_text("paid")
    return served(["nginx", "-p", str(place), "-c", str(place / "nginx.conf")], port)


def nginx_lua(place: Path, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    reported = (ADAPTERS / "tickscope.lua").read_text().replace("/run/tickscope/", f"{place}/")
    (place / "tickscope.lua").write_text(reported)
    (place / "pay").write_text("paid")
    (place / "nginx.conf").write_text(NGINX_LUA.format(place=place, port=port, modules=MODULES))
    return served(["nginx", "-p", str(place), "-c", str(place / "nginx.conf")], port)


def haproxy(place: Path, port: int) -> AbstractContextManager[subprocess.Popen[bytes]]:
    reported = (ADAPTERS / "haproxy.cfg").read_text().replace("/run/tickscope/", f"{place}/")
    (place / "haproxy.cfg").write_text(reported.replace("127.0.0.1:8080", f"127.0.0.1:{port}"))
    return served(["haproxy", "-f", str(place / "haproxy.cfg"), "-db"], port)


SERVERS = {"nginx": nginx, "nginx lua": nginx_lua, "haproxy": haproxy}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    for part in (tmp_path, *tmp_path.parents[:-2]):
        part.chmod(0o755)  # nginx's workers are nobody
    return tmp_path


def asked(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30 * PATIENCE)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status


@pytest.mark.parametrize("name", SERVERS)
def test_each_answer_is_reported_and_no_request_waits_for_it(place: Path, name: str) -> None:
    program = name.partition(" ")[0]
    if shutil.which(program) is None and not Path(f"/usr/sbin/{program}").exists():
        pytest.skip(f"no {program}")
    if name == "nginx lua" and not (MODULES / "ngx_http_lua_module.so").exists():
        pytest.skip("no Lua in nginx: apt-get install libnginx-mod-http-lua")
    port = free_port()
    reported = Reported(place)
    with SERVERS[name](place, port) as server:
        if name == "nginx":
            assert asked(port, "/") == 200  # no limit, nothing to tell
        statuses = [asked(port, "/api/pay") for _ in range(11)]
        assert statuses == [200] * 5 + [429] * 6
        rows = reported.until(11)
        assert (
            sorted(reported.results()) == ["allowed"] * 5 + ["refused"] * 6
        )  # HAProxy's threads may log in another order
        if name == "nginx":
            assert columns(rows, "limiter_id", "key", "library") == [
                (b"nginx shop", hashed("127.0.0.1"), b"nginx limit_req")
            ]
            assert re.fullmatch(rb"1\.\d+\.\d+", rows["library_version"][0])
            assert set(rows["comm"].tolist()) == {b"nginx"}
        elif name == "nginx lua":
            assert rows["remaining"].tolist() == [4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6]
            assert columns(rows, "limiter_id", "key", "library", "comm", "burst", "window_ns") == [
                (b"lua shop", hashed("127.0.0.1"), b"nginx lua", b"nginx", 5, 60 * 10**9)
            ]
        else:
            assert sorted(rows["remaining"].tolist(), reverse=True) == [4, 3, 2, 1, 0, -1, -2, -3, -4, -5, -6]
            assert columns(rows, "limiter_id", "key", "library", "pid") == [
                (b"haproxy api", hashed("127.0.0.1"), b"haproxy", server.pid)
            ]
            assert columns(rows, "burst", "window_ns") == [(5, 60 * 10**9)]
        reported.close()
        assert [asked(port, "/api/pay") for _ in range(3)] == [429] * 3  # no agent
        (place / "intake.sock").unlink(missing_ok=True)
        with socket.socket(
            socket.AF_UNIX, socket.SOCK_DGRAM
        ) as stopped:  # an agent that reads nothing, with the queue of a socket as it is made
            stopped.bind(str(place / "intake.sock"))
            (place / "intake.sock").chmod(0o666)
            length = int(Path("/proc/sys/net/unix/max_dgram_qlen").read_text())
            assert {asked(port, "/api/pay") for _ in range(min(length, 1000) + 13)} == {429}
        (place / "intake.sock").unlink()
        again = Reported(place)
        end = time.monotonic() + 60 * PATIENCE
        while not len(again.rows) and time.monotonic() < end:  # nginx finds out by one that it loses
            assert asked(port, "/api/pay") == 429
            again.read()
        assert again.results()[0] == "refused"
        assert again.source.losses()["malformed"] == 0
        if name == "nginx lua":  # the logs count nothing
            assert again.dropped() >= 3
        again.close()
