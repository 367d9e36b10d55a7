"""Keeps the sockets in the run directory: a source that looks once a second whether they are all there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from agent.batch import Batch, make
from agent.contracts import Failing, Owning
from agent.posix.rundir import RunDirectory
from agent.tables import TABLES

_LOOK_NS = 1_000_000_000


class Mender(Failing, Owning):
    """Implements ``agent.contracts.Source``: a row of ``probe_status`` whenever something is missing that was there, or
    there again.
    """

    name = "sockets"

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._looked_ns, self._told = 0, ""

    def fds(self) -> list[int]:
        return []

    def drain(self, now_ns: int) -> Iterable[Batch]:
        if now_ns - self._looked_ns < _LOOK_NS:
            return ()
        self._looked_ns = now_ns
        self._directory.mend()
        return self._news(now_ns)

    def _news(self, now_ns: int) -> list[Batch]:
        failures = self._directory.failures
        told = "; ".join(failures.values())
        if told == self._told:
            return []
        self._told, table = told, TABLES["probe_status"]
        return [
            make(
                "probe_status",
                1,
                t_ns=now_ns,
                probe=self.name.encode(),
                state=table.code("state", "degraded" if told else "attached"),
                reason=told.encode()[:256],
            )
        ]

    def failures(self) -> dict[str, str]:
        """For ``status``: sockets that are missing, and why."""
        return dict(self._directory.failures)

    def processes(self) -> list[dict[str, Any]]:
        """For ``status``."""
        keeper = self._directory.keeper
        return [{"pid": keeper.pid, "role": "keeper"}] if keeper is not None and keeper.alive else []

    def close(self) -> None:
        """The directory is the agent's."""
