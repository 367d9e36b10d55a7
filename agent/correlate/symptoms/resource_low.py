"""A resource of a process is used up, or withheld from it."""

from __future__ import annotations

import numpy as np

from agent.correlate.catalogue import Symptom
from agent.correlate.episode import Episode
from agent.correlate.resources import READS, ResourceWatch
from agent.correlate.thresholds import SECOND
from agent.correlate.watch import Second
from agent.correlate.words import Words, opening, render, span, value, when

#: Throttled time of a second, by a quota in most of its periods, for two seconds; and this many times the usual time.
_THROTTLED_NS, _PERIODS, _RATIO = 350e6, 0.6, 4.0
#: Waits for a CPU of a second on average, and at least half of it in each, for two seconds, while decisions take far
#: longer than usual.
_DELAY_NS, _SLOWER, _SLOWER_NS = 100e6, 4.0, 20e6
#: Waits longer than any on a busy host, and their sum in a second: these need no other symptom.
_LONG_NS, _STARVED_NS = 100e6, 300e6
#: Waits for a CPU explain slow decisions from this share of their time on.
_SHARE = 0.4
_LAST = 2
#: Seconds of the baseline that must be known.
_WARM = 5


def judge(watch: ResourceWatch, second: Second) -> None:
    """Bad: it had some left before, and has none now; or it got far less CPU time than usual."""
    _used_up(watch, second)
    processors = np.array([s for s in second.slots.tolist() if watch.names[s][0][2] == "cpu"], np.int64)
    if len(processors):
        _withheld(watch, second.at, processors)


def _used_up(watch: ResourceWatch, second: Second) -> None:
    limited = np.array([s for s in second.slots.tolist() if watch.names[s][0][2] != "cpu"], np.int64)
    if not len(limited):
        return
    none = watch.series.recent("none", limited, second.at, 1)[:, 0]
    for slot, gone in zip(limited.tolist(), none == 1, strict=True):
        what = watch.names[slot][0][2]
        if gone and (slot in watch.has_room or what in ("oom", "pids")):
            used, limit = (
                float(watch.series.recent(m, np.array([slot]), second.at, 1)[0, 0]) for m in ("used", "limit")
            )
            if not watch.extended(SYMPTOM.name, slot, second.at, used):
                its = {"start_ns": second.at * SECOND, "bar": limit}
                watch.begin(SYMPTOM.name, slot, second.at, used, 1, **its).facts["limit"] = limit
        elif not gone:
            watch.has_room.add(slot)


def _withheld(watch: ResourceWatch, at: int, slots: np.ndarray) -> None:
    series = watch.series
    names = ("throttled_ns", "periods", "delay_ns", "longest_ns", "sum_ns", "high_ns")
    recent = {m: series.recent(m, slots, at, _LAST) for m in names}
    active = np.array([(SYMPTOM.name, slot) in watch.active for slot in slots.tolist()])
    sums = {m: recent[m].sum(axis=1) for m in names}
    # no threshold is below that
    considered = active | (np.fmax(sums["throttled_ns"], sums["delay_ns"]) >= _LAST * _DELAY_NS)
    if not considered.any():
        return
    slots, active = slots[considered], active[considered]
    recent, sums = ({m: of[considered] for m, of in part.items()} for part in (recent, sums))
    usual = {m: series.baseline(m, slots, at, _LAST) for m in names}
    high = {m: np.nan_to_num(usual[m].high) for m in names}
    slower = np.nanmax(np.nan_to_num(recent["high_ns"]), axis=1) > np.maximum(
        _SLOWER * usual["high_ns"].median, usual["high_ns"].high + _SLOWER_NS
    )
    slower &= usual["high_ns"].seen >= _WARM
    most = np.all((recent["throttled_ns"] >= _THROTTLED_NS) & (recent["periods"] >= _PERIODS), axis=1)
    quota = most | (slower & (sums["throttled_ns"] >= _LAST * _DELAY_NS))
    quota &= (usual["throttled_ns"].seen >= _WARM) & (sums["throttled_ns"] > _LAST * _RATIO * high["throttled_ns"])
    long = np.all(recent["longest_ns"] >= _LONG_NS, axis=1) & np.all(recent["delay_ns"] >= _STARVED_NS, axis=1)
    long &= recent["longest_ns"].min(axis=1) > _RATIO * high["longest_ns"]
    some = np.all(recent["delay_ns"] >= _DELAY_NS / 2, axis=1) & (sums["delay_ns"] >= _LAST * _DELAY_NS)
    some &= sums["delay_ns"] >= _SHARE * sums["sum_ns"]  # else the decisions are slow for another reason
    kept = (long | (some & slower)) & (usual["delay_ns"].seen >= _WARM)
    kept &= sums["delay_ns"] > _LAST * _RATIO * high["delay_ns"]
    for i in np.flatnonzero(quota | kept | active):
        slot = int(slots[i])
        episode = watch.active.get((SYMPTOM.name, slot))
        metric = "throttled_ns" if quota[i] else "delay_ns"
        worst = float(recent[metric][i].max())
        if episode is not None:
            if recent[episode.metric][i, -1] > episode.bar:
                watch.extend(episode, at, float(recent[episode.metric][i, -1]))
        elif quota[i] or kept[i]:
            base, bar = float(np.nan_to_num(usual[metric].median[i])), _THROTTLED_NS if quota[i] else _DELAY_NS / 2
            its = {"metric": metric, "unit": "ns", "start_ns": (at - _LAST + 1) * SECOND, "base": base, "bar": bar}
            watch.begin(SYMPTOM.name, slot, at, worst, _LAST, **its)


def clause(episode: Episode) -> Words:
    if episode.unit == "ns":
        return render(
            "{who} waited for a CPU for up to {waited} per second, all threads together, {when}",
            who=opening(episode.subject),
            waited=span(episode.value),
            when=when(episode),
        )
    if episode.metric == "oom":
        return render("{who} was killed at {at}", who=opening(episode.subject), at=episode.start_ns)
    if episode.metric == "pids":
        return render(
            "The cgroup of {who} could not start {n} processes or threads in a second {when}",
            who=episode.subject,
            n=value(episode.value),
            when=when(episode),
        )
    what = {"fd": "open files", "disk": "bytes"}[episode.metric]
    return render(
        "{who} had {used} of {limit} {what} in use {when}",
        who=opening(episode.subject),
        used=value(episode.value),
        limit=value(episode.facts.get("limit")),
        what=what,
        when=when(episode),
    )


SYMPTOM = Symptom(
    "resource_low",
    45,
    "a resource of a process is used up or throttled: file descriptors, processes, disk space, memory, CPU",
    "a process, or a file system",
    "",
    "resource",
    READS,
    clause,
    "see what uses it up: tickscope query resource; for CPU: tickscope query cpu_wait",
    ResourceWatch,
    judge,
    measured={
        "fd": "used",
        "disk": "used",
        "oom": "events",
        "pids": "events",
        "throttled_ns": "waited_ns",
        "delay_ns": "wait_ns",
    },
    tables={"delay_ns": "cpu_wait"},
)
