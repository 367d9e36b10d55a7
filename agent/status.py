"""What the agent says about itself: the document of ``tickscope status`` and the totals at its end."""

from __future__ import annotations

import os
import resource
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from agent.batch import make
from agent.columns import NULL_I64
from agent.errors import say
from agent.kernel import bpf
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.clock.history import History
    from agent.config import Config
    from agent.kernel.helper import Helper
    from agent.kernel.load import Loaded
    from agent.loop import Loop


class Status:
    """Facts of the running agent. ``ready_s``: from start to all attached."""

    ready_s = 0.0

    def __init__(self, config: Config, loop: Loop, loaded: Loaded, helper: Helper, watch: Any, history: History) -> None:
        self._config, self._loop, self._loaded = config, loop, loaded
        self._helper, self._watch, self._history = helper, watch, history
        self._started = time.monotonic()
        self._told: dict[str, str] = {}
        self._missed: dict[str, tuple[int, int]] = {}

    def counts(self) -> tuple[int, int]:
        """(families attached whole, families degraded or unavailable)."""
        states = [family.state for family in self._loaded.families.values()]
        return states.count("attached"), len(states) - states.count("attached")

    def wall(self, t_ns: np.ndarray) -> np.ndarray:
        """Unix ns of CLOCK_BOOTTIME ns by the offset history, shape (n,); NULL_I64 where not known."""
        return self._history.to_wall(t_ns).ns if len(self._history) else np.full(len(t_ns), NULL_I64)

    def probes(self) -> list[dict[str, Any]]:
        out = []
        for name, family in self._loaded.families.items():
            hits, run_ns, missed = self._stats(family.programs)
            out.append({"probe": name, "state": family.state, "reason": family.reason or None, "remedy": family.remedy or None,
                        "hits": hits, "run_ns": run_ns, "missed": missed, "programs": len(family.plan)})  # fmt: skip
        if self._config.syscalls == "off":
            out.append({"probe": "syscalls", "state": "off", "reason": "turned off", "remedy": "--syscalls sampled", "hits": None,
                        "run_ns": None, "missed": None, "programs": 0})  # fmt: skip
        return out

    @staticmethod
    def _stats(programs: dict[str, int]) -> tuple[int | None, int | None, int]:
        """(hits, run_ns, missed); the first two where the kernel counts them (kernel.bpf_stats_enabled), else unknown."""
        run_ns, hits, missed = (sum(column) for column in zip((0, 0, 0), *map(bpf.program_stats, programs.values()), strict=True))
        return (hits, run_ns, missed) if hits else (None, None, missed)

    def processes(self) -> list[dict[str, Any]]:
        """pid and role; uid, capabilities and memory are for the asker to read from /proc."""
        out = [{"pid": os.getpid(), "role": "agent"}]
        if self._watch.alive:
            out.append({"pid": self._watch.pid, "role": "clock watch"})
        if self._helper.alive:
            out.append({"pid": self._helper.pid, "role": "helper"})
        for source in self._loop.sources:
            out += getattr(source, "processes", list)()
        for sink in self._loop.sinks:
            out += [{"pid": pid, "role": f"{sink.name} sender"} for pid in getattr(sink, "pids", list)()]
        return out

    def losses(self) -> list[dict[str, Any]]:
        """Records lost since the start; ``count`` is None where nobody knows how many."""
        lost: dict[tuple[str, str], int | None] = {key: n for key, n in self._loop.lost.items() if n}
        lost.update({("store", table): n for table, n in self._loop.store.losses().items() if n})
        lost.update(dict.fromkeys(self._loop.lost_unknown))
        return [{"stage": stage, "source": source, "count": lost[stage, source]} for stage, source in sorted(lost)]

    def lost(self) -> str:
        """The same in words; empty where nothing was lost."""
        return ", ".join(f"{'an unknown number' if x['count'] is None else x['count']} of {x['source']} ({x['stage']})" for x in self.losses())

    def sources(self) -> list[dict[str, str]]:
        """Sources that fail, and why; a queue's own failures too."""
        failing = dict(self._loop.failures)
        for source in self._loop.sources:
            failing.update(getattr(source, "failures", dict)() if callable(getattr(source, "failures", None)) else {})
        return [{"source": name, "failure": why} for name, why in failing.items()]

    def clock(self) -> dict[str, Any]:
        """The clock source's own words; empty where the clock family is off."""
        return next((dict(s.state()) for s in self._loop.sources if s.name == "clock" and hasattr(s, "state")), {})

    def time_daemons(self) -> list[dict[str, Any]]:
        """What the time daemons of this host, and the servers asked past them, said last."""
        return next((s.state() for s in self._loop.sources if s.name == "time daemons" and hasattr(s, "state")), [])

    def notices(self) -> dict[str, Any]:
        """The jump notices: subscribers, acknowledgements, hooks."""
        return next((dict(s.state()) for s in self._loop.sources if s.name == "notices" and hasattr(s, "state")), {})

    def export(self) -> dict[str, Any]:
        states = {s.name: s.state() for s in self._loop.sinks if hasattr(s, "state")}
        page: dict[str, Any] = {"state": "ok", "address": self._config.prometheus}
        if "prometheus" in self._loop.failures:
            page.update(state="failed", last_error=self._loop.failures["prometheus"], remedy="free the address, or set another in prometheus:, and restart")
        elif not self._config.prometheus:
            page = {"state": "off", "remedy": "set prometheus: address:port"}
        return {"otlp": {"state": "off", "remedy": "set OTEL_EXPORTER_OTLP_ENDPOINT"}, "prometheus": page, **states}

    def document(self) -> dict[str, Any]:
        """The JSON of ``tickscope status``, without what only the asker can read."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        uptime = time.monotonic() - self._started
        return {
            "pid": os.getpid(), "uptime_s": round(uptime, 3), "ready_s": round(self.ready_s, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3), "processes": self.processes(), "probes": self.probes(),
            "sources": self.sources(), "rows": dict(self._loop.totals), "correlator_dropped": self._loop.correlator.losses(),
            "loss": self.losses(), "clock": self.clock(), "notices": self.notices(), "time_daemons": self.time_daemons(),
            "store": {"dir": self._config.store, **self._loop.store.state()},
            "export": self.export(), "helper": "running" if self._helper.alive else "gone: no new uprobes; restart tickscope",
        }  # fmt: skip

    def tell(self, now_ns: int) -> None:
        """Feeds the loop ``probe_status`` rows of the families whose state differs from what was last said, and what runs were left out as ``loss``."""
        if not self._helper.alive and "helper" not in self._told:
            self._told["helper"] = "gone"
            say("tickscope: the helper is gone: no new uprobes; restart tickscope")
        table = TABLES["probe_status"]
        for probe in self.probes():
            self._lose(probe, now_ns)
            said = f"{probe['state']} {probe['reason']}"
            if self._told.get(probe["probe"]) == said:
                continue
            self._told[probe["probe"]] = said
            batch = make("probe_status", 1, t_ns=now_ns, probe=probe["probe"].encode(), state=table.code("state", probe["state"]),
                         reason=(probe["reason"] or "").encode(), remedy=(probe["remedy"] or "").encode())  # fmt: skip
            for column in ("hits", "run_ns"):
                if probe[column] is not None:
                    batch.rows[column] = np.int64(probe[column])
            self._loop.take(batch)

    def _lose(self, probe: dict[str, Any], now_ns: int) -> None:
        """Runs that the kernel left out: nobody knows what they would have told, so each counts as one record."""
        missed, since_ns = self._missed.get(probe["probe"], (0, NULL_I64))
        now_missed = probe["missed"] or 0
        if now_missed > missed:
            self._loop.take(make("loss", 1, t_ns=now_ns, stage=TABLES["loss"].code("stage", "kernel"), source=f"{probe['probe']} runs".encode(),
                                 count=now_missed - missed, from_ns=since_ns, to_ns=now_ns))  # fmt: skip
        self._missed[probe["probe"]] = max(now_missed, missed), now_ns

    def farewell(self) -> None:
        """Totals and losses on stderr."""
        rows = ", ".join(f"{n} {name}" for name, n in sorted(self._loop.totals.items()) if name not in ("loss", "finding"))
        found = self._loop.totals["finding"]
        say(f"stopped after {time.monotonic() - self._started:.1f} s: {rows or 'no rows'}; {found} finding updates; lost: {self.lost() or 'nothing'}")
