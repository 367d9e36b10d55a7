"""Metrics of the agent's own state: build, probes, processes, store, exports. Runs on the agent's thread at intervals.

CPU time and memory come from /proc/PID/stat and statm, which every user may read. Memory is resident pages, since PSS
(smaps_rollup) costs a millisecond per process.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agent.tables import TABLES
from exporters.aggregate import MetricStore
from exporters.fold import Attributes
from exporters.notify_settings import RECEIVER_STATES

#: Interval of the readings.
EVERY_NS = 5 * 10**9
_TICKS_PER_S, _PAGE_BYTES = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_STORE_STATES = ("ok", "degraded")


class StatusMetrics:
    """Called once a second by the agent's loop.

    read_status: returns the parts of the status that are used here: ``processes probes store export``. page: the
    metrics page, if there is one.
    """

    def __init__(
        self, metrics: MetricStore, version: str, read_status: Callable[[], Mapping[str, Any]], page: Any = None
    ) -> None:
        self._metrics, self._read_status, self._page = metrics, read_status, page
        self._version, self._due_ns = version, 0

    def __call__(self, now_ns: int) -> None:
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + EVERY_NS
        for name, values in self._values().items():
            self._metrics.observe(f"tickscope.{name}", values.items(), now_ns)

    def _values(self) -> dict[str, dict[Attributes, float]]:
        seen = self._read_status()
        store, otlp = seen["store"], seen["export"].get("otlp", {})
        cpu: dict[Attributes, float] = {}
        memory: dict[Attributes, float] = {}
        for process in seen["processes"]:
            key = (("tickscope.role", process["role"]),)
            used = _usage(process["pid"])
            if used is not None:
                cpu[key], memory[key] = cpu.get(key, 0) + used[0], memory.get(key, 0) + used[1]
        states = TABLES["probe_status"].by_name["state"].names
        out: dict[str, dict[Attributes, float]] = {
            "build.info": {
                (("version", self._version), ("python", platform.python_version()), ("kernel", os.uname().release)): 1
            },
            "probe.state": {
                (("tickscope.probe", p["probe"]), ("tickscope.state", s)): float(p["state"] == s)
                for p in seen["probes"]
                for s in states
            },
            "process.cpu": cpu,
            "process.memory": memory,
            "store.state": {(("tickscope.state", s),): float(store["state"] == s) for s in _STORE_STATES},
            "store.size": {(): store["bytes"]},
            "store.segments": {(): store["segments"]},
            "store.waiting": {(): store["waiting_rows"]},
            "store.dropped": {(): store["dropped_rows"]},
            "metrics.samples": {(): self._metrics.samples},
            "metrics.overflowed": {(): self._metrics.overflowed},
        }
        if "sent_spans" in otlp:
            out["otlp.sent"] = {
                (("tickscope.signal", s),): otlp[f"sent_{s}"]
                for s in ("spans", "logs", "points")
                if f"sent_{s}" in otlp
            }
            out["otlp.unsampled"] = {(): otlp["unsampled"]}
        notified = {name: one for name, one in seen["export"].items() if "retries" in one}
        for count in ("sent", "retries", "dropped") if notified else ():
            out[f"notify.{count}"] = {(("tickscope.receiver", name),): one[count] for name, one in notified.items()}
        if notified:
            out["notify.state"] = {
                (("tickscope.receiver", name), ("tickscope.state", s)): float(one["state"] == s)
                for name, one in notified.items()
                for s in RECEIVER_STATES
            }
        if self._page is not None:
            out["page.requests"] = {
                (("http.response.status_code", code),): n for code, n in sorted(self._page.requests.copy().items())
            }
            out["page.dropped"] = {(("tickscope.reason", reason),): n for reason, n in self._page.dropped.items()}
        return out


def _usage(pid: int) -> tuple[float, int] | None:
    """(CPU seconds, resident bytes) of a process; None if it is gone."""
    try:
        # After the name, which may contain spaces and brackets: state is field 3, utime and stime 14 and 15 (proc(5)).
        numbers = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return (int(numbers[11]) + int(numbers[12])) / _TICKS_PER_S, pages * _PAGE_BYTES
