"""The state of the agent: the document of ``tickscope status`` and the totals at its end."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from agent.batch import Loss, losses, make
from agent.columns import NULL_I64
from agent.common.clocks import boot_ns
from agent.contracts import Failing, Owning, Parted, Source, Stating
from agent.kernel import bpf
from agent.log import INFO, log_message
from agent.service import redis_reported
from agent.service.bounds import Bounds
from agent.tables import TABLES

if TYPE_CHECKING:
    from agent.clock.history import History
    from agent.kernel.helper_client import Helper
    from agent.kernel.loaded_families import Loaded
    from agent.kernel.settings import ProbeSettings
    from agent.service.loop import Loop


#: A part that fails and recovers all the time is logged so often at most.
_REPORT_NS = 5_000_000_000
#: How often the kernel is asked how often programs ran.
_COUNT_NS = 10_000_000_000


class Shown(NamedTuple):
    """A section of the status document and the source that describes it."""

    source: Source
    text_of: Callable[[], Any]


class StatusSettings(NamedTuple):
    """Settings that are shown, as they were at the start."""

    probes: ProbeSettings
    redis_mode: str
    store_dir: str
    page_address: str


class Status:
    """Facts of the running agent. ``ready_s``: from start to all attached. shown: by the document's sections ``clock
    notices time_daemons intake programs analysis investigation``; page: of the metrics, where it is served.
    """

    ready_s = 0.0

    def __init__(
        self,
        settings: StatusSettings,
        loop: Loop,
        loaded: Loaded,
        helper: Helper,
        watch: Any,
        history: History,
        shown: Mapping[str, Shown] | None = None,
        page: Stating | None = None,
    ) -> None:
        self._settings, self._loop, self._loaded, self._shown, self._page = settings, loop, loaded, shown or {}, page
        self._helper, self._watch, self._history = helper, watch, history
        self._started = time.monotonic()
        self._logged: dict[str, str] = {}
        self._reported_ns: dict[str, int] = {}
        self._missed: dict[str, tuple[int, int]] = {}
        self._stats: dict[str, tuple[int | None, int | None, int]] = {}
        self._counted_ns = -_COUNT_NS

    def ready(self, started_s: float) -> None:
        """All probes are attached. started_s: time.monotonic() at the start of the agent."""
        self._started, self.ready_s = started_s, time.monotonic() - started_s

    @property
    def uptime_s(self) -> float:
        return time.monotonic() - self._started

    def counts(self) -> tuple[int, int]:
        """(families attached whole, families degraded or unavailable)."""
        states = [family.state for family in self._loaded.families.values()]
        return states.count("attached"), len(states) - states.count("attached")

    def wall(self, t_ns: np.ndarray) -> np.ndarray:
        """Unix ns of CLOCK_BOOTTIME ns by the offset history, shape (n,); NULL_I64 where not known."""
        return self._history.wall(t_ns)

    def probes(self) -> list[dict[str, Any]]:
        """A row a family; its counts are _COUNT_NS old at most."""
        out = []
        for name, family in self._loaded.families.items():
            hits, run_ns, missed = self._stats.get(name, (None, None, 0))
            out.append(
                {
                    "probe": name,
                    "state": family.state,
                    "reason": family.reason or None,
                    "remedy": family.remedy or None,
                    "hits": hits,
                    "run_ns": run_ns,
                    "missed": missed,
                    "programs": len(family.plan),
                }
            )
        for name, mode, remedy in (
            ("syscalls", self._settings.probes.syscalls, "--syscalls sampled"),
            ("redis", self._settings.redis_mode, "redis_limiters: auto"),
            ("unix", "on" if self._settings.probes.unix_sockets else "off", "unix_sockets: true"),
        ):
            if mode == "off":
                out.append(
                    {
                        "probe": name,
                        "state": "off",
                        "reason": "turned off",
                        "remedy": remedy,
                        "hits": None,
                        "run_ns": None,
                        "missed": None,
                        "programs": 0,
                    }
                )
        return out

    def _count(self, now_ns: int) -> None:
        """Asks the kernel how often each family's programs ran: a hundred system calls."""
        self._counted_ns = now_ns
        self._stats = {name: self._ran(family.programs) for name, family in self._loaded.families.items()}

    @staticmethod
    def _ran(programs: dict[str, int]) -> tuple[int | None, int | None, int]:
        """(hits, run_ns, missed); the first two where the kernel counts them (kernel.bpf_stats_enabled), else
        unknown.
        """
        run_ns, hits, missed = (
            sum(column) for column in zip((0, 0, 0), *map(bpf.program_stats, programs.values()), strict=True)
        )
        return (hits, run_ns, missed) if hits else (None, None, missed)

    def processes(self) -> list[dict[str, Any]]:
        """pid and role; uid, capabilities and memory are for the asker to read from /proc."""
        out = [{"pid": os.getpid(), "role": "agent"}]
        for child in (self._watch.child, self._helper.child):
            out += child.processes()
        for source in self._loop.sources:
            out += source.processes() if isinstance(source, Owning) else ()
        for sink in self._loop.sinks:
            out += sink.processes() if isinstance(sink, Owning) else ()
        return out

    def losses(self) -> list[dict[str, Any]]:
        """Records lost since the start; ``count`` is None if unknown."""
        lost: dict[tuple[str, str], int | None] = {key: n for key, n in self._loop.lost.items() if n}
        lost.update({("store", table): n for table, n in self._loop.store.losses().items() if n})
        lost.update(dict.fromkeys(self._loop.lost_unknown))
        return [{"stage": stage, "source": source, "count": lost[stage, source]} for stage, source in sorted(lost)]

    def lost(self) -> str:
        """The same in words; empty where nothing was lost."""
        return ", ".join(
            f"{'an unknown number' if x['count'] is None else x['count']} of {x['source']} ({x['stage']})"
            for x in self.losses()
        )

    def sources(self) -> list[dict[str, Any]]:
        """Parts that failed, how often (None: not counted), why, and whether they are left out now; a queue's own
        failures too.
        """
        by_probe: dict[str, dict[str, Any]] = {}
        for faults in (self._loop.faults, *(s.faults for s in self._loop.sources if isinstance(s, Parted))):
            by_probe.update(
                {
                    n: {"failure": why, "count": faults.counts.get(n), "left_out": faults.out(n)}
                    for n, why in faults.failures.items()
                }
            )
        for source in self._loop.sources:
            if isinstance(source, Failing):
                by_probe.update(
                    {n: {"failure": why, "count": None, "left_out": False} for n, why in source.failures().items()}
                )
        return [{"source": name, **row} for name, row in by_probe.items()]

    def clock(self) -> dict[str, Any]:
        """The clock source's own words; empty where the clock family is off."""
        return dict(self._state_of("clock", {}))

    def time_daemons(self) -> list[dict[str, Any]]:
        """The last answers of the time daemons of this host, and of the time servers that are polled."""
        return list(self._state_of("time_daemons", []))

    def notices(self) -> dict[str, Any]:
        """The jump notices: subscribers, acknowledgements, hooks."""
        return dict(self._state_of("notices", {}))

    def bounds(self) -> dict[str, dict[str, int]]:
        """Bounds that were hit: by source, what that has cost so far, in words."""
        return {
            source.probe: hit for source in self._loop.sources if isinstance(source, Bounds) and (hit := source.hit())
        }

    def intake(self) -> dict[str, int]:
        """Connections of programs that report their decisions, and what was refused or lost there."""
        return dict(self._state_of("intake", {}))

    def otlp_receiver(self) -> dict[str, Any]:
        """Where OTLP is taken, what came and what was refused; empty where it is off."""
        return dict(self._state_of("otlp_receiver", {}))

    def programs(self) -> list[dict[str, Any]]:
        """Programs and libraries that are not seen, or not wholly, and why."""
        return list(self._state_of("programs", []))

    def analysis(self) -> dict[str, int]:
        """What the analysis of files takes."""
        return dict(self._state_of("analysis", {}))

    def investigation(self) -> dict[str, Any]:
        """On-demand profiles: what runs now, and their cost so far; empty if they are off."""
        return dict(self._state_of("investigation", {}))

    def _state_of(self, section: str, otherwise: Any) -> Any:
        """Nothing of a source that is left out."""
        shown = self._shown.get(section)
        return (
            shown.text_of()
            if shown is not None and any(shown.source is source for source in self._loop.sources)
            else otherwise
        )

    def export(self) -> dict[str, Any]:
        states = {s.name: s.state() for s in self._loop.sinks if isinstance(s, Stating)}
        served: dict[str, Any] = self._page.state() if self._page is not None else {}
        page: dict[str, Any] = {"state": "ok", "address": self._settings.page_address, **served}
        if "prometheus" in self._loop.failures:
            page.update(
                state="failed",
                last_error=self._loop.failures["prometheus"],
                remedy="free the address, or set another in prometheus:, and restart",
            )
        elif not self._settings.page_address:
            page = {"state": "off", "remedy": "set prometheus: address:port"}
        return {"otlp": {"state": "off", "remedy": "set OTEL_EXPORTER_OTLP_ENDPOINT"}, "prometheus": page, **states}

    def parts(self) -> dict[str, Any]:
        """What the agent's own metrics are made of."""
        return {
            "processes": self.processes(),
            "probes": self.probes(),
            "store": self._loop.store.state(),
            "export": self.export(),
        }

    def document(self) -> dict[str, Any]:
        """The JSON of ``tickscope status``, without what only the asker can read."""
        self._count(boot_ns())
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "pid": os.getpid(),
            "uptime_s": round(self.uptime_s, 3),
            "ready_s": round(self.ready_s, 3),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 3),
            "processes": self.processes(),
            "probes": self.probes(),
            "sources": self.sources(),
            "bounds": self.bounds(),
            "intake": self.intake(),
            "otlp_receiver": self.otlp_receiver(),
            "redis_limiters": redis_reported.state(self._loop.sources, self._loaded, self._settings.redis_mode),
            "rows": dict(self._loop.totals),
            "correlator_dropped": self._loop.unevaluated(),
            "rules": self._loop.correlator.guard.state(),
            "loss": self.losses(),
            "clock": self.clock(),
            "notices": self.notices(),
            "time_daemons": self.time_daemons(),
            "store": {"dir": self._settings.store_dir, **self._loop.store.state()},
            "export": self.export(),
            "helper": self._helper.child.state(),
            "programs": self.programs(),
            "analysis": self.analysis(),
            "investigation": self.investigation(),
        }

    def log_changes(self, now_ns: int) -> None:
        """Feeds the loop ``probe_status`` rows of families whose state has changed, and ``loss`` rows of skipped
        program runs.
        """
        store = self._loop.store.problem() or "running"
        children = ((child.role, child.state()) for child in (self._helper.child, self._watch.child))
        for name, now in (*children, ("store", store)):
            if self._logged.get(name, "running") != now and now_ns - self._reported_ns.get(name, 0) >= _REPORT_NS:
                self._logged[name], self._reported_ns[name] = now, now_ns
                log_message(f"tickscope: {name}: {now}")
        table = TABLES["probe_status"]
        if now_ns - self._counted_ns >= _COUNT_NS:
            self._count(now_ns)
        for probe in self.probes():
            self._lose(probe, now_ns)
            text = f"{probe['state']} {probe['reason']}"
            if self._logged.get(probe["probe"]) == text:
                continue
            self._logged[probe["probe"]] = text
            batch = make(
                "probe_status",
                1,
                t_ns=now_ns,
                probe=probe["probe"].encode(),
                state=table.code("state", probe["state"]),
                reason=(probe["reason"] or "").encode(),
                remedy=(probe["remedy"] or "").encode(),
            )
            for column in ("hits", "run_ns"):
                if probe[column] is not None:
                    batch.rows[column] = np.int64(probe[column])
            self._loop.take(batch)

    def _lose(self, probe: dict[str, Any], now_ns: int) -> None:
        """Program runs that the kernel skipped: each counts as one lost record."""
        missed, since_ns = self._missed.get(probe["probe"], (0, NULL_I64))
        now_missed = probe["missed"] or 0
        if now_missed > missed:
            self._loop.take(losses("kernel", Loss(f"{probe['probe']} runs", now_missed - missed, since_ns, now_ns)))
        self._missed[probe["probe"]] = max(now_missed, missed), now_ns

    def farewell(self) -> None:
        """Totals and losses on stderr."""
        rows = ", ".join(
            f"{n} {name}"
            for name, n in sorted(self._loop.totals.items())
            if name not in ("loss", "finding", "verdict", "evidence")
        )
        found = self._loop.totals["finding"]
        log_message(
            f"stopped after {self.uptime_s:.1f} s: {rows or 'no rows'}; {found} finding updates;"
            f" lost: {self.lost() or 'nothing'}",
            INFO,
            event="stopped",
            rows=dict(self._loop.totals),
            loss=self.losses(),
        )
