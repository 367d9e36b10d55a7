"""A PostgreSQL server of a test's own, with a job table, and its clients.

``python -m tests.servers.postgresql work PORT SECONDS``: a worker that takes one job at a time with SKIP LOCKED, and
takes SECONDS for each; ``never``: it keeps its first job. It prints a line when it has begun. ``produce PORT
PER_SECOND``: adds jobs until it is killed. ``read PORT SLOT``: reads a logical slot and confirms at once.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import psycopg2.extras

from tests.patience import PATIENCE
from tests.ports import free_ports
from tests.servers.rabbitmq import ROOT, in_root

USER = "postgres"
#: Jobs with a state, as most libraries have them.
TABLE = """
CREATE TABLE jobs (
    id bigserial PRIMARY KEY, queue text NOT NULL DEFAULT 'mail', state text NOT NULL DEFAULT 'ready',
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(), started timestamptz, attempts int NOT NULL DEFAULT 0)
"""
QUERY = """
SELECT queue, count(*) FILTER (WHERE state = 'ready' AND run_at <= now()) AS ready,
    count(*) FILTER (WHERE state = 'running') AS pending,
    count(*) FILTER (WHERE state = 'ready' AND run_at > now()) AS delayed,
    min(run_at) FILTER (WHERE state = 'ready' AND run_at > now()) AS next_due,
    min(run_at) FILTER (WHERE state = 'ready' AND run_at <= now()) AS oldest,
    min(started) FILTER (WHERE state = 'running') AS oldest_pending,
    count(*) FILTER (WHERE attempts > 1) AS redelivered,
    max(id) AS added, count(*) FILTER (WHERE state = 'done') AS done
FROM jobs GROUP BY queue
"""
TAKE = """
UPDATE jobs SET state = 'running', started = clock_timestamp(), attempts = attempts + 1 WHERE id = (
    SELECT id FROM jobs WHERE state = 'ready' AND run_at <= now() ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id
"""


def binaries(root: Path) -> Path:
    """The directory with initdb and postgres, within a root: of the newest version that is installed."""
    found = max((root / "usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return Path("/", found.relative_to(root))


def owner(root: Path) -> tuple[int, int]:
    """User and group ids of the package's user."""
    lines = (root / "etc/passwd").read_text().splitlines()
    return next((int(line.split(":")[2]), int(line.split(":")[3])) for line in lines if line.startswith(f"{USER}:"))


class Postgres:
    """A server on a free port of 127.0.0.1, without durability. settings: of postgresql.conf. tls: path of a
    certificate (.pem) and its key (.key), without suffix. hba: pg_hba.conf. root: another system's, of which it is.
    """

    def __init__(
        self,
        *,
        hba: str = "",
        tls: Path | None = None,
        segment_mb: int = 16,
        root: Path | None = None,
        **settings: object,
    ) -> None:
        self._prepare(root)
        options = ("-A", "trust", "-U", USER, "--no-sync", "-E", "UTF8", f"--wal-segsize={segment_mb}")
        self._do("initdb", "-D", str(self.data), *options)
        if tls is not None:
            for name, kind in (("server.crt", "pem"), ("server.key", "key")):
                shutil.copy(f"{tls}.{kind}", self.data / name)
                os.chown(self.data / name, *self._owner)
                (self.data / name).chmod(0o600)
        self._configure(settings)
        if hba:
            (self.data / "pg_hba.conf").write_text(hba)
        self.start()

    def _prepare(self, root: Path | None) -> None:
        self.root = root
        self.directory = Path(tempfile.mkdtemp(prefix="tickscope-postgres-"))
        self.data = self.directory / "data"
        self._owner = owner(root or Path("/"))
        os.chown(self.directory, *self._owner)
        self._bin = binaries(root or Path("/"))
        (self.port,) = free_ports(1)

    def command(self, name: str, *arguments: str) -> list[str]:
        """A command of PostgreSQL, as its user."""
        uid, gid = self._owner
        user = ("setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups")
        return [*in_root(self.root, self.directory), *user, str(self._bin / name), *arguments]

    def _configure(self, settings: dict[str, object]) -> None:
        given = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "fsync": "off",
            "wal_level": "logical",
            "max_replication_slots": 300,
            "shared_buffers": "16MB",
            **settings,
        }
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in given.items())

    @classmethod
    def standby(cls, of: Postgres, slot: str) -> Postgres:
        """A hot standby that streams from this server, through a slot."""
        self = cls.__new__(cls)
        self._prepare(of.root)
        where = f"host=127.0.0.1 port={of.port} user={USER} application_name=standby"
        self._do("pg_basebackup", "-D", str(self.data), "-d", where, "-R", "-C", "-S", slot, "-c", "fast")
        self._configure({})
        self.start()
        return self

    @property
    def url(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.command("postgres", "-D", str(self.data)),
                env=self._env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        until = time.monotonic() + 60 * PATIENCE
        while True:
            try:
                psycopg2.connect(self.url).close()
                return
            except psycopg2.OperationalError as error:
                text = (self.directory / "log").read_text()
                assert self.process.poll() is None and time.monotonic() < until, text
                if "starting up" not in str(error) and "refused" not in str(error) and "not yet" not in str(error):
                    return  # it asks for more than a name
                time.sleep(0.1)

    @property
    def _env(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}

    def _do(self, name: str, *arguments: str) -> None:
        command = self.command(name, *arguments)
        done = subprocess.run(
            command, env=self._env, capture_output=True, text=True, check=False, timeout=300 * PATIENCE
        )
        assert done.returncode == 0, done.stderr

    def do(self, statement: str) -> list[tuple[Any, ...]]:
        """Rows of a statement, outside a transaction."""
        connection = psycopg2.connect(self.url)
        try:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def processes(self) -> list[int]:
        """The postmaster and its children, which are in sessions of their own. By pgrep: /proc/PID/task/TID/children
        leaves some out while others end.
        """
        found = subprocess.run(["pgrep", "-P", str(self.process.pid)], capture_output=True, text=True)
        return [self.process.pid, *map(int, found.stdout.split())]

    def signal(self, number: int) -> None:
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        """At once, as by a crash."""
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        if self.root is not None:
            with contextlib.suppress(OSError):
                os.removedirs(f"{self.root}{self.directory}")


@contextlib.contextmanager
def client(*arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process of this module's, after its first line; killed at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.servers.postgresql", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _connect(port: str, **more: Any) -> Any:
    return psycopg2.connect(host="127.0.0.1", port=port, user=USER, dbname="postgres", **more)


def work(port: str, seconds: str) -> None:
    connection = _connect(port, application_name="worker")
    connection.autocommit = True
    with connection.cursor() as cursor:
        print("begun", flush=True)
        while True:
            cursor.execute(TAKE)
            taken = cursor.fetchone()
            if taken is None:
                time.sleep(0.05)
                continue
            time.sleep(1e6 if seconds == "never" else float(seconds))
            cursor.execute("UPDATE jobs SET state = 'done' WHERE id = %s", taken)


def produce(port: str, per_s: str) -> None:
    connection = _connect(port)
    connection.autocommit = True
    with connection.cursor() as cursor:
        print("begun", flush=True)
        at = time.monotonic()
        while True:
            cursor.execute("INSERT INTO jobs DEFAULT VALUES")
            at += 1 / float(per_s)
            time.sleep(max(0.0, at - time.monotonic()))


def read(port: str, slot: str) -> None:
    connection = _connect(
        port, connection_factory=psycopg2.extras.LogicalReplicationConnection, application_name="reader"
    )
    cursor = connection.cursor()
    cursor.start_replication(slot_name=slot, decode=False, status_interval=1)
    print("begun", flush=True)

    def take(message: Any) -> None:
        message.cursor.send_feedback(flush_lsn=message.data_start, force=True)

    cursor.consume_stream(take)


if __name__ == "__main__":
    {"work": work, "produce": produce, "read": read}[sys.argv[1]](*sys.argv[2:])
