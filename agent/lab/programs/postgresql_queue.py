"""PostgreSQL: a server on the run's disk with a job table, a producer, and two workers (SKIP LOCKED)."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from agent.common.clocks import boot_ns
from agent.lab.program import FAR, Run
from agent.lab.programs.queue_work import BROKERS, OrderWork, broker_programs, produce

SYSTEM, QUEUE = "postgresql", "refunds"
PORT = BROKERS[SYSTEM].port
URL = f"postgresql://lab@{FAR}:{PORT}/postgres"
_TABLE = f"""
CREATE TABLE IF NOT EXISTS jobs (
    id bigserial PRIMARY KEY, queue text NOT NULL DEFAULT '{QUEUE}', state text NOT NULL DEFAULT 'ready',
    sent_ns bigint NOT NULL, poison boolean NOT NULL,
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(), started timestamptz, worker text,
    attempts int NOT NULL DEFAULT 0)
"""
_QUERY = """
SELECT queue, count(*) FILTER (WHERE state = 'ready') AS ready,
    count(*) FILTER (WHERE state = 'running') AS pending, count(*) FILTER (WHERE attempts > 1) AS redelivered,
    min(run_at) FILTER (WHERE state = 'ready') AS oldest, min(started) FILTER (WHERE state = 'running')
    AS oldest_pending FROM jobs GROUP BY queue
"""
_ADD = "INSERT INTO jobs (sent_ns, poison) VALUES (%s, %s)"
_TAKE = """
UPDATE jobs SET state = 'running', started = clock_timestamp(), worker = %s, attempts = attempts + 1 WHERE id = (
    SELECT id FROM jobs WHERE state = 'ready' ORDER BY attempts, id LIMIT 1 FOR UPDATE SKIP LOCKED)
RETURNING id, sent_ns, poison
"""
_GIVE_BACK = "UPDATE jobs SET state = 'ready' WHERE state = 'running' AND "
_IDLE_S = 0.05


def _binaries() -> Path:
    """The directory of the newest version that is installed. Raises FileNotFoundError."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    program = str(found[-1]) if found else shutil.which("initdb")
    if program is None:
        raise FileNotFoundError("PostgreSQL is not installed (apt install postgresql)")
    return Path(program).resolve().parent


def available(_shared: Path) -> None:
    _binaries()
    if find_spec("psycopg2") is None:
        raise FileNotFoundError("a client of PostgreSQL is not installed (pip install psycopg2-binary)")


def serve(run: Run) -> None:
    data, programs = run.shared / "disk" / "postgresql", _binaries()
    environment = {"PATH": os.environ.get("PATH", ""), "LANG": "C.UTF-8"}
    if not (data / "PG_VERSION").exists():
        options = ("-A", "trust", "-U", "lab", "--no-sync", "-E", "UTF8", "--wal-segsize=1", "-D", str(data))
        command = [str(programs / "initdb"), *options]
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        with (data / "pg_hba.conf").open("a") as file:
            file.write("host all all 10.0.0.0/8 trust\n")
    with suppress(FileNotFoundError):
        (data / "postmaster.pid").unlink()  # of the server that was killed
    settings = {
        "listen_addresses": FAR,
        "port": PORT,
        "unix_socket_directories": str(run.directory),
        "shared_buffers": "16MB",
        "max_wal_size": "32MB",
        "min_wal_size": "2MB",
        "autovacuum_naptime": "10s",
    }
    words = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
    program = str(programs / "postgres")
    os.execve(program, [program, "-D", str(data), *words], environment)


def _cursor() -> Any:
    """Of a new connection in which each statement is a transaction. The table is there then. Raises psycopg2.Error."""
    import psycopg2

    connection = psycopg2.connect(URL, connect_timeout=5)
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("SELECT pg_advisory_lock(1)")  # two that create the table at once fail
    cursor.execute(_TABLE)
    cursor.execute("SELECT pg_advisory_unlock(1)")
    return cursor


def consume(run: Run) -> None:
    import psycopg2

    run.listen()
    work, name = OrderWork(run), run.program.name
    while True:
        try:
            cursor = _cursor()
            cursor.execute(_GIVE_BACK + "worker = %s", (name,))  # what it held when it was killed
            while True:
                cursor.execute(_TAKE, (name,))
                taken = cursor.fetchone()
                if taken is None:
                    time.sleep(_IDLE_S)
                    continue
                job, sent_ns, poison = taken
                done = work(sent_ns, poison)
                cursor.execute("DELETE FROM jobs WHERE id = %s" if done else _GIVE_BACK + "id = %s", (job,))
        except psycopg2.Error:
            run.log("handle", boot_ns(), "down")
            time.sleep(0.2)


def send(run: Run) -> None:
    import psycopg2

    def connect() -> Callable[[int, bool], object]:
        cursor = _cursor()
        return lambda *order: cursor.execute(_ADD, order)

    produce(run, connect, psycopg2.Error)


PROGRAMS = broker_programs(
    SYSTEM,
    QUEUE,
    serve,
    send,
    consume,
    comm="postgres",
    polled=("postgresql", {"url": URL, "query": _QUERY}),
    prepare=available,
)
