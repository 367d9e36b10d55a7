"""The jump notices as a source: subscribers, acknowledgements, the hook's deliveries. The agent's side."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import Batch
from agent.clock.subscribers import COUNTS
from agent.columns import NULL_I64
from agent.contracts import Failing, Owning, Stating
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.clock.hooks import HookProcess
    from agent.clock.watch_process import WatchProcess

_CHECK_NS = 200_000_000
_REPORT_BYTES = 1 << 16
_SOCKET: dict[str, Any] = {"subscribers": 0, "pending": 0, "sent": 0, "acknowledged": 0, "dropped": 0, "malformed": 0}
_HOOK: dict[str, Any] = {"delivered": 0, "failed": 0, "dropped": 0, "error": ""}


class NoticeSource(Stating, Failing, Owning):
    """Implements ``agent.contracts.Source``: a row of ``notice_status`` per channel at the start, and when its state
    changes.
    """

    name = "notices"

    def __init__(self, watch: WatchProcess, hook: HookProcess | None = None) -> None:
        self._watch, self._hook = watch, hook
        self._sockets, self._state = {"socket": watch.reports}, {"socket": dict(_SOCKET)}
        if hook is not None:
            self._sockets["exec"], self._state["exec"] = hook.reports, dict(_HOOK)
        self._gone: set[str] = set()
        self._news = set(self._state)
        self._problem = ""
        self._checked_at_ns = 0

    def drain(self, now_ns: int) -> Iterator[Batch]:
        if now_ns - self._checked_at_ns < _CHECK_NS:
            return
        self._checked_at_ns = now_ns
        for channel in self._sockets:
            self._read(channel)
        self._check_watch()
        for channel in sorted(self._news):
            yield Batch("notice_status", self._row(channel, now_ns))
        self._news.clear()

    def _read(self, channel: str) -> None:
        while channel not in self._gone:
            try:
                data = self._sockets[channel].recv(_REPORT_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self._gone.add(channel)
            else:
                self._state[channel] = json.loads(data)
            self._news.add(channel)

    def _check_watch(self) -> None:
        """Clears the subscribers of a watch that ended. The next watch continues its counts."""
        state, how = self._state["socket"], self._watch.child.state()
        problem = "" if how == "running" else how
        self._watch.counts = {key: state[key] for key in COUNTS if key in state}
        if problem != self._problem:
            self._problem = problem
            self._news.add("socket")
        if not self._watch.alive:
            state.update(subscribers=0, pending=0, waiting=[])

    def _row(self, channel: str, now_ns: int) -> np.ndarray:
        state, row = self._state[channel], TABLES["notice_status"].empty(1)
        row["t_ns"], row["channel"] = now_ns, TABLES["notice_status"].code("channel", channel)
        for column in ("subscribers", "pending", "acknowledged", "failed", "dropped", "malformed"):
            row[column] = state.get(column, NULL_I64)
        row["sent"] = state.get("sent", state.get("delivered"))
        row["reason"] = self._failing(channel).encode()
        return row

    def _failing(self, channel: str) -> str:
        if channel == "socket":
            return self._problem
        gone = f"its process is gone ({self._state[channel].get('error') or 'restart tickscope'})"
        return gone if channel in self._gone else str(self._state[channel].get("error", ""))

    def state(self) -> dict[str, Any]:
        """For ``status``: the notice socket's counts, the subscribers that have not acknowledged, and the hook's
        counts.
        """
        for channel in self._sockets:
            self._read(channel)
        state = "gone" if "exec" in self._gone else "running"
        hook = {"exec": {**self._state["exec"], "state": state}} if self._hook is not None else {}
        return {**self._state["socket"], "hooks": hook}

    def failures(self) -> dict[str, str]:
        """For ``status``: channels whose process has ended or does not answer."""
        return {
            f"notices {channel}": self._failing(channel)
            for channel in sorted(self._gone | ({"socket"} if self._problem else set()))
        }

    def processes(self) -> list[dict[str, Any]]:
        """For ``status``."""
        return self._hook.child.processes() if self._hook is not None and "exec" not in self._gone else []

    def close(self) -> None:
        """Ends the hook. The agent ends the watch."""
        if self._hook is not None:
            self._hook.close()
