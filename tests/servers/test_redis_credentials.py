"""The password of a real Redis server from a file, a variable and a credential of systemd, and its certificate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from agent.posix import privilege
from agent.queues import catalogue
from agent.queues.poller_process import BrokerPoller
from tests.ports import free_port
from tests.servers.certificates import certificates
from tests.servers.polled import poll, until_drained
from tests.servers.test_redis_places import Sentinel
from tests.servers.test_redis_rights import failure
from tests.servers.test_redis_streams import Redis, redis

__all__ = ["redis"]

ROOT = Path(__file__).parents[2]
PASSWORD = "s3cr#t:/@"
Section = dict[str, str]
TLS_FILES = {"tls-cert": "server.pem", "tls-key": "server.key", "tls-ca-cert": "ca.pem"}
kinds = pytest.mark.parametrize("kind", ["redis", "celery"])


def locked(server: Redis) -> None:
    """Only a user ``watch`` may log in."""
    server.do("XGROUP", "CREATE", "orders", "g", "$", "MKSTREAM")
    server.do("ACL", "SETUSER", "watch", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    server.do("ACL", "SETUSER", "default", "off")


def asked(kind: str, section: Section) -> Any:
    (queue,) = catalogue.broker(kind).sources([section])
    with closing(queue):
        return poll(queue)[0]


@pytest.fixture
def section(redis: Redis, tmp_path: Path) -> Callable[..., Section]:
    """A section of the server, with these keys."""
    locked(redis)
    return lambda **more: {"url": f"redis://127.0.0.1:{redis.port}/0", "user": "watch", **more}


def polled(brokers: BrokerPoller, what: Callable[[Any], bool]) -> Any:
    return next(filter(what, until_drained(brokers, lambda rows: any(map(what, rows)))))


@kinds
@pytest.mark.parametrize("way", ["file", "variable"])
def test_the_broker_process_reads_the_password_and_shows_it_nowhere(
    section: Callable[..., Section],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    way: str,
) -> None:
    name = f"TICKSCOPE_{kind.upper()}_PASSWORD"
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    monkeypatch.setenv(name, PASSWORD)
    keys = {"file": {"password_file": str(tmp_path / "password")}, "variable": {"password_variable": name}}
    given = section(**keys[way])
    with closing(BrokerPoller(kind, (given,), 0.1)) as brokers:
        row = polled(brokers, lambda row: row["status"] == b"ok")
        (process,) = brokers.processes()
        files = [Path(f"/proc/{process['pid']}/{name}") for name in ("cmdline", "environ")]
        shown = [file.read_bytes() for file in files]
        assert brokers.failures() == {}
    assert all(PASSWORD.encode() not in one for one in (*shown, row.tobytes()))
    assert PASSWORD not in "".join(capfd.readouterr())


@kinds
def test_a_changed_file_is_used_at_the_next_login(
    section: Callable[..., Section], redis: Redis, tmp_path: Path, kind: str
) -> None:
    file = tmp_path / "password"
    file.write_text(PASSWORD)
    (queue,) = catalogue.broker(kind).sources([section(password_file=str(file))])
    admin = f"redis://watch:{'s3cr%23t%3A%2F%40'}@127.0.0.1:{redis.port}/0"
    with closing(queue):
        assert poll(queue)["status"].tolist() == [b"ok"]
        subprocess.run(
            ["redis-cli", "--no-auth-warning", "-u", admin, "ACL", "SETUSER", "watch", "resetpass", ">rotated"],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        file.write_text("rotated")
        kill = ["redis-cli", "-p", str(redis.port), "--user", "watch", "--pass", "rotated", "CLIENT", "KILL", "SKIPME"]
        subprocess.run([*kill, "yes"], check=True, capture_output=True)
        rows = [poll(queue) for _ in range(2)][-1]  # the first finds the connection closed
        assert rows["status"].tolist() == [b"ok"]


@kinds
def test_a_password_that_cannot_be_read(
    section: Callable[..., Section], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "wrong").write_text("wr0ng")
    variable = f"TICKSCOPE_{kind.upper()}_NONE"
    for keys, words in (
        ({"password_file": f"{tmp_path}/none"}, "No such file"),
        ({"password_file": f"{tmp_path}/empty"}, "it is empty"),
        ({"password_file": f"{tmp_path}/wrong"}, "login refused: WRONGPASS"),
        ({"password_variable": variable}, f"{variable} is not set in the agent's environment"),
        ({"password_credential": "none"}, "$CREDENTIALS_DIRECTORY is not set"),
    ):
        row = asked(kind, section(**keys))
        assert (row["status"], failure(row)) == (b"down", "login")
        # of a long path the end of the reason may be cut off
        assert words in row["reason"].decode() or (len(str(tmp_path)) > 50 and len(row["reason"]) > 120)
        assert b"wr0ng" not in row["reason"]
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/tickscope.service")
    row = asked(kind, section(password_credential="redis"))
    assert row["reason"].endswith(b"no /run/credentials/tickscope.service/redis: add LoadCredential=, restart")


#: What agent/main.py does: reads the credentials as root, gives up root, and starts the broker process.
AGENT = """
import json, os, sys, time
from agent.common.clocks import boot_ns
from agent.posix import privilege
from agent.common.credentials import load_credentials
from agent.queues.poller_process import BrokerPoller
kind, server = sys.argv[1], json.loads(sys.argv[2])
user = privilege.service_user()
load_credentials()
privilege.drop(*user)
assert not os.access(os.environ["CREDENTIALS_DIRECTORY"], os.R_OK)
brokers = BrokerPoller(kind, (server,), 0.1)
end = time.monotonic() + 60
found = []
while not found and time.monotonic() < end:
    found = [r["status"] for b in brokers.drain(boot_ns()) if b.table == "queue_lag" for r in b.rows]
    time.sleep(0.05)
brokers.close()
print(found[0].decode())
"""


@kinds
@pytest.mark.skipif(os.geteuid() != 0, reason="systemd's credentials are root's")
def test_a_credential_of_systemd_is_read_before_root_is_given_up(
    section: Callable[..., Section], tmp_path: Path, kind: str
) -> None:
    if privilege.closed_to_others():
        pytest.skip("the agent's own user cannot read the code")
    directory = tmp_path / "credentials"
    directory.mkdir()
    (directory / "broker").write_text(PASSWORD)
    (directory / "binary").write_bytes(b"\xff\xfe")  # of somebody else
    (directory / "broker").chmod(0o400)
    directory.chmod(0o500)
    given = json.dumps(section(password_credential="broker"))
    done = subprocess.run(
        [sys.executable, "-c", AGENT, kind, given],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CREDENTIALS_DIRECTORY": str(directory)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == "ok\n"
    assert PASSWORD not in done.stderr


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[int]:
    """The port of a server with a certificate of ``ca.pem``, which asks for one of its clients, too."""
    certificates(tmp_path)
    port = free_port()
    options = [part for name, file in TLS_FILES.items() for part in (f"--{name}-file", str(tmp_path / file))]
    with Redis(tmp_path, "--tls-port", str(port), *options):
        yield port


@kinds
@pytest.mark.parametrize(
    ("host", "files", "status", "words"),
    [
        ("127.0.0.1", {"ca_file": "ca.pem", "certificate_file": "server.pem", "key_file": "server.key"}, b"ok", b""),
        (
            "localhost",
            {"ca_file": "ca.pem", "certificate_file": "server.pem", "key_file": "server.key"},
            b"down",
            b"verify failed: set `url` to a name in it (Hostname mismatch",
        ),
        ("127.0.0.1", {"ca_file": "other.pem"}, b"down", b"verify failed: set `ca_file` to its authority ("),
        ("127.0.0.1", {}, b"down", b"verify failed: set `ca_file` to its authority ("),
        ("127.0.0.1", {"ca_file": "none"}, b"down", b"ca_file"),
        ("127.0.0.1", {"ca_file": "ca.pem"}, b"down", b"(set `certificate_file`)"),
    ],
)
def test_certificates(
    secure: int, tmp_path: Path, kind: str, host: str, files: Section, status: bytes, words: bytes
) -> None:
    paths = {key: str(tmp_path / file) for key, file in files.items()}
    row = asked(kind, {"url": f"rediss://{host}:{secure}/0", **paths})
    assert (row["status"], words in row["reason"]) == (status, True), row["reason"]


def test_a_sentinel_with_a_certificate_of_the_same_authority(secure: int, tmp_path: Path) -> None:
    tls = (f"{one}-file {tmp_path}/{file}" for one, file in TLS_FILES.items())
    with Sentinel(tmp_path, secure, *tls, "tls-replication yes", tls=True) as sentinel:
        files = {"ca_file": "ca.pem", "certificate_file": "server.pem", "key_file": "server.key"}
        paths = {key: str(tmp_path / file) for key, file in files.items()}
        for kind in ("redis", "celery"):
            row = asked(kind, {"url": f"rediss+sentinel://127.0.0.1:{sentinel.port}/shop/0", **paths})
            assert (row["status"], row["cluster"]) == (b"ok", f"shop@127.0.0.1:{sentinel.port}".encode()), row["reason"]
