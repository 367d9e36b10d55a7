"""A whole agent, started as a user starts it: the installed `tickscope`, with a store and sockets of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.cli.status import memory_of
from agent.errors import AgentError
from agent.service.control import ask
from tests.patience import PATIENCE, returned, tries, until

TICKSCOPE = Path(sys.executable).with_name("tickscope")


class Agent:
    """A running `tickscope run`. Directories are made with mode 0700 above, as mktemp makes them."""

    def __init__(
        self, root: Path, *args: str, wrap: tuple[str, ...] = (), env: dict[str, str] | None = None, config: str = ""
    ) -> None:
        self.root, self.store = root, root / "store"
        self.run_dir = root / "run"
        self.config = root / "tickscope.yaml"
        self.config.write_text(config or "prometheus: ''\n")
        self.env = {
            **os.environ,
            "TICKSCOPE_RUN_DIR": str(self.run_dir),
            "TICKSCOPE_STORE": str(self.store),
            "TICKSCOPE_CONFIG": str(self.config),
            **(env or {}),
        }
        self.errors = root / "stderr"
        with self.errors.open("wb") as log:
            self.process = subprocess.Popen(
                [*wrap, str(TICKSCOPE), "run", *args],
                env=self.env,
                stdout=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )

    def cli(self, *args: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(TICKSCOPE), *args], env=self.env, capture_output=True, text=True, timeout=60 * PATIENCE
        )
        assert not check or done.returncode == 0, done.stderr
        return done

    def json(self, *args: str) -> dict[str, Any]:
        """A verb's JSON document; one without rows where there are none."""
        done = self.cli(*args, "-o", "json", check=False)
        assert done.returncode in (0, 3), done.stderr
        return dict(json.loads(done.stdout or '{"rows": [], "gaps": []}'))

    def rows(self, table: str, where: str, enough: int = 0, limit_s: float = 10) -> list[dict[str, Any]]:
        """Rows of a table; waits until there are ``enough``, then a second longer, so that a surplus shows."""
        rows: list[dict[str, Any]] = []
        for _ in tries(limit_s, 0.2, 2):
            rows = self.json("query", table, "--where", where)["rows"]
            if len(rows) >= enough:
                time.sleep(1)
                return list(self.json("query", table, "--where", where)["rows"])
        return rows

    def some(self, table: str, where: str, limit_s: float = 10) -> list[dict[str, Any]]:
        """Rows of a table as soon as there is one; empty if none comes."""
        for _ in tries(limit_s, 0.2, 2):
            if rows := self.json("query", table, "--where", where)["rows"]:
                return list(rows)
        return []

    def ready(self, limit_s: float = 30) -> Agent:
        until(
            lambda: b"ready attached=" in self.errors.read_bytes() or self.process.poll() is not None,
            limit_s,
            0.05,
            why=self.log,
        )
        assert self.process.poll() is None, self.log()
        return self

    def status(self) -> dict[str, Any]:
        """As `tickscope status --wait` has it. Asked from here, since tests ask often."""
        answer: dict[str, Any] = returned(lambda: ask(self.env["TICKSCOPE_RUN_DIR"], "status"), AgentError, 10)
        return {**answer, "processes": [memory_of(one) for one in answer["processes"]]}

    def pid(self, role: str = "agent") -> int:
        return int(next(p["pid"] for p in self.status()["processes"] if p["role"] == role))

    def stop(self, number: int = signal.SIGINT) -> int:
        if self.process.poll() is None:
            os.kill(self.process.pid, number)
        return self.process.wait(30 * PATIENCE)

    def end(self) -> None:
        """Stops it, and kills what is left of it where it does not stop."""
        try:
            self.stop(signal.SIGTERM)
        finally:
            if self.process.poll() is None:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def until(self, what: Callable[[], Any], limit_s: float = 60) -> Any:
        """What it returns once that is true: a command takes half a second of a processor."""
        return until(what, limit_s, 0.3, 2, why=self.log)

    def log(self) -> str:
        return self.errors.read_text()
