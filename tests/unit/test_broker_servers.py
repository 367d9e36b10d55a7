"""Servers in the settings that cannot be used: each kind of broker refuses them, and no message has the password. Names
that are not resolved, and certificates of another authority.
"""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from agent.common.address import peer_bytes
from agent.common.clocks import boot_ns
from agent.common.lookup import connect
from agent.common.resp import RedisDown, RedisUrl, RespClient
from agent.common.tls import client_context, unverified, unverified_by_us
from agent.errors import AgentError
from agent.queues import addresses
from agent.queues.brokers.kafka import KafkaCluster, KafkaServer
from agent.queues.brokers.postgresql import PostgresQueues, PostgresUrl
from agent.queues.catalogue import broker
from agent.queues.postgresql_client import PostgresDown
from tests.hostile import serving
from tests.patience import PATIENCE
from tests.servers.certificates import certificates, self_signed

REFUSED: dict[str, list[Any]] = {
    "etcd": [
        "etcd://u:pw@h",
        "http://u:pw@",
        "http://u:pw@h,",
        "http://u:pw@h:0",
        "http://u:pw@h?copy=x:pw@y",
        "http://u:pw@h?keys=a",
    ],
    "nats": [
        "nats://u:pw@h:4222",
        "http://u:pw@",
        "http://u:pw@h:0",
        "http://u:pw@h?stream=a",
        "http://u:pw@h?client=x",
        {"url": "http://u:pw@h", "user": "u"},
        {"url": "http://h", "password_variable": "NATS_pw"},
    ],
    "postgresql": [
        "mysql://u:pw@h",
        "postgresql://u:pw@",
        "postgresql://u:pw@h:0",
        "postgresql://u:pw@h:99999/d",
        "postgresql://u:pw@h/d?sslmode=maybe",
        "postgresql://u:pw@h/d?application_name=x",
        "postgresql://u:pw@h/d/e",
        "postgresql:///d?host=relative",
        {},
        {"url": "postgresql://u:pw@h", "password_file": "/a"},
        {"url": "postgresql://h", "password_file": "/a", "password_variable": "TICKSCOPE_POSTGRESQL_PW"},
        {"url": "postgresql://h", "password_variable": "PW"},
        {"url": "postgresql://h", "key_file": "/a"},
        {"url": "postgresql://h", "ca_file": "relative"},
        {"url": "postgresql://h", "slots": False},
        {"url": "postgresql://h", "jobs": "nothing"},
    ],
    "queues_from": [
        "ftp://u:pw@h/#name=a&length=b",
        "http://u:pw@h:99999/#name=a&length=b",
        "http://u:pw@h/metrics",
        "http://u:pw@h/metrics#length=b",
        "http://u:pw@h/metrics#name=a",
        "http://u:pw@h/metrics#name=a&length=b&other=c",
        "http://u:pw@h/metrics#name=a&length=b{c}",
        {"url": "http://u:pw@h/metrics", "queues": []},
        {"url": "http://u:pw@h/metrics", "queues": [{"name": "a", "length": "b", "pending": "/c"}]},
        {"url": "http://u:pw@h", "queues": [{"name": "a", "length": "b"}, {"name": "a", "length": "/c"}]},
        {"url": "http://u:pw@h", "queues": [{"name": "a", "length": "b", "oldest_s": "c", "oldest_at_s": "d"}]},
        {"url": "http://h", "queues": [{"name": "a", "length": "b"}], "password_variable": "PW"},
        {"queues": [{"name": "a", "length": "b"}]},
    ],
    "rabbitmq": [
        "redis://h",
        "http://:pw@",
        "http://u:pw@h:0",
        "http://u:pw@h:99999",
        "http://u:pw@h?queue=a",
        "http://u:pw@h?amqp=x",
        "http://u:pw@h/metrics",
        "http://u:pw@h?management=0",
    ],
    "redis": [
        "http://x",
        "redis://h:nan/0",
        "redis://h/zero",
        "redis://:pw@h/0?stream=a",
        "unix://",
    ],
}


@pytest.mark.parametrize(("kind", "server"), [(kind, one) for kind, those in REFUSED.items() for one in those])
def test_a_server_that_cannot_be_used_is_refused_without_its_password(kind: str, server: Any) -> None:
    with pytest.raises(AgentError) as error:
        broker(kind).sources([server])
    assert "pw" not in str(error.value)


NAMED: dict[str, Any] = {
    "celery": "redis://silent.example",
    "etcd": "http://silent.example",
    "kafka": "silent.example:9092",
    "nats": "http://silent.example",
    "postgresql": "postgresql://silent.example",
    "queues_from": "http://silent.example/#name=a&length=b",
    "rabbitmq": "http://silent.example",
    "redis": "redis://silent.example",
}


@pytest.mark.parametrize("kind", NAMED)
@pytest.mark.parametrize(
    ("error", "words"),
    [
        (None, "the DNS server does not answer"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "DNS failed (Temporary failure)"),
        (socket.gaierror(socket.EAI_NONAME, "Name not known"), "DNS has no such host (Name not known)"),
    ],
)
def test_a_name_that_is_not_resolved_is_a_state_of_its_server(
    kind: str, error: OSError | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends, asked, real = threading.Event(), list[str](), socket.getaddrinfo

    def silent(host: str, *given: Any, flags: int = 0, **named: Any) -> Any:
        if host != "silent.example" or flags & socket.AI_NUMERICHOST:
            return real(host, *given, flags=flags, **named)
        asked.append(host)
        if error is None:
            ends.wait(60)
        raise error or socket.gaierror(socket.EAI_AGAIN, "Temporary failure")

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    (source,) = broker(kind).sources([NAMED[kind]])
    try:
        with closing(source):
            for _ in range(2):
                began_s = time.monotonic()
                rows = source.poll()
                assert time.monotonic() - began_s < 2 * PATIENCE
                assert {row["status"] for row in rows} == {"down"}
                assert {row["failure"] for row in rows} == {"unreachable"}
                assert all(words in str(row["reason"])[:128] for row in rows), rows
        assert error is not None or len(asked) == 1  # a look-up under way is not begun again
    finally:
        ends.set()


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("silent", [1, 2])
def test_bootstrap_names_that_are_not_resolved_delay_no_other(
    tls: bool, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One name is known at once, one after 0.05 s; the others, before them, are not."""
    ends, real = threading.Event(), socket.getaddrinfo

    def names(host: str, port: int, *given: Any, flags: int = 0, **named: Any) -> Any:
        if not host.endswith(".example") or flags & socket.AI_NUMERICHOST:
            return real(host, port, *given, flags=flags, **named)
        if host.startswith("silent"):
            ends.wait(60)
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
        later = host == "later.example"
        time.sleep(0.05 if later else 0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.2" if later else "10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", names)
    given = [*(f"silent{n}.example" for n in range(silent)), "known.example", "later.example"]
    cluster = KafkaCluster(KafkaServer(servers=",".join(f"{one}:9092" for one in given), tls=tls), 10 * PATIENCE)
    try:
        began_s = time.monotonic()
        found = cluster._resolved()
        assert time.monotonic() - began_s < PATIENCE
        expected = ["known.example:9092", "later.example:9092"] if tls else ["10.0.0.1:9092", "10.0.0.2:9092"]
        assert found.split(",")[0] == expected[0]
        assert set(found.split(",")) <= set(expected)  # on a busy machine the second one may be too late
    finally:
        ends.set()


def test_a_refused_login_waits_for_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    ends, real = threading.Event(), socket.getaddrinfo

    def silent(*given: Any, flags: int = 0, **named: Any) -> Any:
        return real(*given, flags=flags, **named) if flags & socket.AI_NUMERICHOST else ends.wait(120 * PATIENCE)

    monkeypatch.setattr(socket, "getaddrinfo", silent)
    queue = PostgresQueues(PostgresUrl.parse("postgresql://silent.example"), timeout_s=60 * PATIENCE)
    queue._not_before_ns, queue._refusal = boot_ns() + 3600 * 10**9, PostgresDown("refused", "login")
    try:
        began_s = time.monotonic()
        (row,) = queue.poll()
        assert time.monotonic() - began_s < 30 * PATIENCE
        assert (row["failure"], row["reason"]) == ("login", "postgresql silent.example:5432/postgres: refused")
    finally:
        ends.set()


_WANTS_TLS = b"\0\0\0\x08\x04\xd2\x16\x2f"  # PostgreSQL's SSLRequest


@contextmanager
def tls_server(here: Path, asks: bool = False) -> Iterator[int]:
    """The port of a server with TLS, also of PostgreSQL's. asks: for certificates of its clients."""
    certificates(here)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(here / "server.pem", here / "server.key")
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(here / "ca.pem")

    def serve(client: socket.socket) -> None:
        with client, suppress(OSError):
            client.settimeout(PATIENCE)
            if client.recv(8, socket.MSG_PEEK) == _WANTS_TLS:
                client.recv(8)
                client.sendall(b"S")
            with context.wrap_socket(client, server_side=True) as secured:
                secured.recv(1)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of such a server, and the file of an authority that did not sign it."""
    here = tmp_path_factory.mktemp("tls")
    with tls_server(here) as port:
        yield port, str(here / "other.pem")


@pytest.fixture(scope="module")
def asking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """The port of a server that asks for certificates, and the file of its authority."""
    here = tmp_path_factory.mktemp("asking")
    with tls_server(here, asks=True) as port:
        yield port, str(here / "ca.pem")


SECURED: dict[str, dict[str, Any]] = {
    "celery": {"url": "rediss://127.0.0.1:{}/0"},
    "etcd": {"url": "https://127.0.0.1:{}"},
    "kafka": {"servers": "127.0.0.1:{}", "tls": True},
    "nats": {"url": "https://127.0.0.1:{}"},
    "postgresql": {"url": "postgresql://127.0.0.1:{}"},
    "queues_from": {"url": "https://127.0.0.1:{}/metrics", "queues": [{"name": "a", "length": "b"}]},
    "rabbitmq": {"url": "https://127.0.0.1:{}"},
    "redis": {"url": "rediss://127.0.0.1:{}/0"},
}


def polled(kind: str, server: Any, words: str) -> Any:
    """The row of a server of which nothing is known. words: of its reason."""
    (source,) = broker(kind).sources([server])
    with closing(source):
        for _ in range(5):  # the first one may have no answer in time
            rows = source.poll()
            if any(words in str(row.get("reason"))[:128] for row in rows):
                break
    assert [row["status"] for row in rows] == ["down"]
    assert words in str(rows[0]["reason"])[:128]
    return rows[0]


def section(kind: str, port: int, authority: str) -> dict[str, Any]:
    given = {name: it.format(port) if isinstance(it, str) else it for name, it in SECURED[kind].items()}
    return {**given, "ca_file": authority}


@pytest.mark.parametrize("kind", SECURED)
def test_a_certificate_of_another_authority_names_the_setting(kind: str, stranger: tuple[int, str]) -> None:
    row = polled(kind, section(kind, *stranger), "certificate verify failed: set `ca_file` to its authority")
    assert row["failure"] == "login"  # says nothing of the server


@pytest.mark.parametrize("kind", ["redis", "celery"])
def test_a_url_alone_has_other_names_for_certificates_than_a_section(
    kind: str, stranger: tuple[int, str], asking: tuple[int, str]
) -> None:
    for (port, authority), words in (
        (stranger, "verify failed: set `ssl_ca_certs=` to its authority"),
        (asking, "(set `ssl_certfile=`)"),
    ):
        polled(kind, f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={authority}", words)


@pytest.mark.parametrize("kind", ["redis", "celery", "etcd", "nats", "rabbitmq", "queues_from"])
def test_a_server_that_asks_for_a_certificate_names_the_setting(kind: str, asking: tuple[int, str]) -> None:
    polled(kind, section(kind, *asking), "(set `certificate_file`)")


def test_a_server_that_ends_after_the_login_asks_for_no_certificate(tmp_path: Path) -> None:
    certificates(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")

    def answers(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as secured:
            for reply in (b"+OK\r\n", b"+PONG\r\n"):
                secured.recv(999)
                secured.sendall(reply)
            secured.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # ends with a reset
        reset.set()

    reset = threading.Event()
    with serving(answers) as port:
        client = RespClient(RedisUrl.parse(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/ca.pem"), 9 * PATIENCE)
        client.pipeline([("PING",)])
        assert reset.wait(9 * PATIENCE)
        with pytest.raises(RedisDown, match="connection closed by the server") as down:
            client.pipeline([("PING",)])
    assert down.value.failure == "closed"


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("self-signed certificate", "set `ca_file` to its authority (self-signed certificate)"),
        ("certificate has expired", "certificate has expired"),
        (
            "Hostname mismatch, certificate is not valid for 'h'.",
            "set `url` to a name in it (Hostname mismatch, certificate is not valid for 'h'.)",
        ),
        (
            'server certificate for "a" does not match host name "h"',
            'set `url` to a name in it (server certificate for "a" does not match host name "h")',
        ),
        ("", "set `ca_file` to its authority, `url` to a name in it"),
    ],
)
def test_a_refused_certificate_has_a_remedy(why: str, words: str) -> None:
    assert unverified(why) == f"certificate verify failed: {words}"


def test_a_key_with_a_passphrase_is_refused_and_not_asked_for(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    locked = ["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", f"{tmp_path}/locked"]
    subprocess.run(locked, check=True, capture_output=True)
    client_context("", certificate, key)
    with pytest.raises(OSError, match=r"a key with a passphrase: .*/cert, .*/locked"):
        client_context("", certificate, f"{tmp_path}/locked")


def test_connections_share_a_context_until_a_file_changes(tmp_path: Path) -> None:
    key, certificate = self_signed(tmp_path)
    first = client_context(certificate)
    assert client_context(certificate) is first
    assert client_context(certificate, certificate, key) is not first
    (changed := tmp_path / "changed").mkdir()
    self_signed(changed)
    (changed / "cert").replace(certificate)
    assert client_context(certificate) is not first
    assert client_context() is client_context()


@pytest.mark.parametrize(
    ("why", "ours"),
    [("self-signed certificate", True), ("certificate has expired", False), ("certificate is not yet valid", False)],
)
def test_a_certificate_that_all_clients_refuse_is_an_outage(why: str, ours: bool) -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_message = why
    assert unverified_by_us(error) == ours
    assert not unverified_by_us(ConnectionResetError())


def test_a_name_that_is_resolved_later_is_found_and_each_of_its_addresses_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real, known = socket.getaddrinfo, list[int]()

    def later(host: str, port: int, *given: Any, flags: int = 0, **named: Any) -> Any:
        if host != "later.example" or flags & socket.AI_NUMERICHOST:
            return real(host, port, *given, flags=flags, **named)
        if not known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure")
        kind = socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
        none = (1 << 20, socket.SOCK_STREAM, 0, "", ("::1", 1))  # a host without IPv6
        refusing, server = ((*kind, ("127.0.0.1", one)) for one in known)
        return [refusing, none, server]

    monkeypatch.setattr(socket, "getaddrinfo", later)
    monkeypatch.setattr(addresses, "_UNKNOWN_AGAIN_S", 0.0)
    found = addresses.Addresses()
    assert found.peer("later.example", 5) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        known += [1, server.getsockname()[1]]
        assert found.peer("later.example", 5, wait_s=PATIENCE) == peer_bytes("127.0.0.1", 5)
        with connect("later.example", 5, time.monotonic() + PATIENCE) as client:
            assert client.getpeername()[1] == known[1]
