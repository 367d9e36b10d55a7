"""A healthy, busy host: Redis under its own benchmark, a stream whose consumer keeps up, nginx asked by many clients,
also by TLS. No finding.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.patience import listening
from tests.ports import free_port
from tests.servers.certificates import self_signed
from tests.system.agent import Agent

#: Seconds of it; a shorter time than an operator would wait, so that the suite ends.
SILENCE_S = float(os.environ.get("TICKSCOPE_TEST_SILENCE_S", "40"))

NGINX = """daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
events {{ worker_connections 512; }}
http {{
  access_log off;
  client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy; fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi; scgi_temp_path {directory}/scgi;
  server {{
    listen 127.0.0.1:{plain}; listen 127.0.0.1:{tls} ssl; root {directory}; keepalive_requests 100000;
    ssl_certificate {directory}/cert; ssl_certificate_key {directory}/key;
  }}
}}
"""
#: argv: plain port, TLS port. Sixteen clients; each keeps its connection for fifty requests.
BROWSERS = """
import http.client, ssl, sys, threading, time
context = ssl.create_default_context(); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
def browse(connect):
    while True:
        connection = connect()
        for _ in range(50):
            connection.request("GET", "/page"); assert len(connection.getresponse().read()) == 20_000
            time.sleep(0.02)
        connection.close()
plain, tls = map(int, sys.argv[1:])
for i in range(16):
    connect = lambda: http.client.HTTPConnection("127.0.0.1", plain)
    if i % 2:
        connect = lambda: http.client.HTTPSConnection("127.0.0.1", tls, context=context)
    threading.Thread(target=browse, args=(connect,)).start()
"""
#: argv: the Redis port. Two hundred entries a second, read and acknowledged by a group of one.
STREAM = """
import sys, threading, time
from agent.common.resp import RedisUrl, RespClient
url = RedisUrl.parse(f"redis://127.0.0.1:{sys.argv[1]}/0")
def client(): return RespClient(url, timeout_s=20)
client().pipeline([("XGROUP", "CREATE", "orders", "billing", "0", "MKSTREAM")])
def produce():
    to = client()
    while True:
        to.pipeline([("XADD", "orders", "MAXLEN", "~", "10000", "*", "order", "1")]); time.sleep(0.005)
threading.Thread(target=produce).start()
of = client()
while True:
    read = "XREADGROUP", "GROUP", "billing", "one", "COUNT", "100", "BLOCK", "1000", "STREAMS", "orders", ">"
    (reply,) = of.pipeline([read])
    if reply:
        of.pipeline([("XACK", "orders", "billing", *(entry[0] for entry in reply[0][1]))])
"""


@contextmanager
def running(*command: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd="/")
    try:
        yield process
        assert process.poll() is None, command
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that nginx's worker may read; those above tmp_path are closed to it by each other pytest that
    starts.
    """
    with tempfile.TemporaryDirectory(prefix="tickscope-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_a_healthy_busy_host_has_no_finding(start: Callable[..., Agent], public: Path) -> None:
    redis, plain, tls = free_port(), free_port(), free_port()
    (public / "page").write_bytes(b"x" * 20_000)
    (public / "nginx.conf").write_text(NGINX.format(directory=public, plain=plain, tls=tls))
    self_signed(public)
    with (
        running("redis-server", "--port", str(redis), "--bind", "127.0.0.1", "--save", "", "--dir", str(public)),
        running("nginx", "-e", str(public / "nginx.log"), "-c", str(public / "nginx.conf")),
    ):
        for port in (redis, plain, tls):
            listening(port)
        agent = start(config=f"prometheus: ''\nredis: redis://127.0.0.1:{redis}/0\n").ready()
        with (
            running("redis-benchmark", "-p", str(redis), "-c", "50", "-t", "set,get", "-n", "1000000000", "-q"),
            running(sys.executable, "-c", BROWSERS, str(plain), str(tls)),
            running(sys.executable, "-c", STREAM, str(redis)),
        ):
            time.sleep(SILENCE_S)
            status = agent.status()
            findings = agent.json("findings")["rows"]
    assert [f["sentence"] for f in findings] == []
    assert status["loss"] == []
    seen = status["rows"]
    assert seen["tls_handshake"] >= SILENCE_S * 2
    assert seen["tcp_rtt"] >= SILENCE_S * 50
    lag = agent.json("query", "queue_lag", "--where", "destination = 'orders'")["rows"]
    assert len(lag) >= SILENCE_S / 2
