"""The counts of a profile as rows. Pure: arrays in, batches out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64, fitted
from agent.investigate.asleep import Asleep
from agent.investigate.pending_thread import PendingThread
from agent.investigate.profile import Counted
from agent.kernel.wire_structs import decode
from agent.probes.syscalls import classes, names
from agent.tables import TABLES

#: Rows of one profile: off_cpu of threads that were delayed, that waited, that were ready; on_cpu; lock_contention;
#: block_io of processes; system calls.
MOST = {"slow": 24, "waiting": 8, "ready": 4, "ran": 12, "locks": 24, "blocks": 32, "calls": 64}
#: On-CPU stacks that get names, those with most time.
NAMED = 256
#: Less time off the CPU in all makes no row.
LEAST_NS = 1_000_000
_NO_CALL = 0xFFFF
_READY = TABLES["off_cpu"].code("state", "ready")
_SLOW, _WAITING = (TABLES["off_cpu"].code("kind", name) for name in ("slow", "waiting"))
_WAITS, _BY_FD, _POLLS = 2, 3, 5  # classes of agent/probes/syscalls.py
_SLEEPING = TABLES["off_cpu"].code("state", "sleeping")
_KINDS = ((1, "spin"), (8, "rtmutex"), (16, "percpu"), (32, "mutex"), (2, "read"), (4, "write"))


class FrameNames(NamedTuple):
    """kernel, user: the text of a stack by its number (user's also by process). lock: (address, stack) -> the lock's
    name, or what takes it.
    """

    kernel: Callable[[int], str]
    user: Callable[[int, int], str]
    lock: Callable[[int, int], str]


def gone(counted: Counted, until_ns: int, identities: dict[int, np.void]) -> tuple[np.ndarray, np.ndarray]:
    """off-CPU keys and values, including threads that are still off the CPU, counted until the end of the profile.
    identities: by pid.
    """
    keys, values = counted.maps["offcpu_sums"]
    _, still = counted.maps["offcpu_gone"]
    still = still[[int(pid) in identities for pid in still["key"]["pid"]]] if len(still) else still
    more = np.zeros(len(still), values.dtype)
    more["count"] = 1
    more["sum_ns"] = more["max_ns"] = (until_ns - still["off_ns"].astype(np.int64)).clip(0)
    for i, pid in enumerate(still["key"]["pid"].tolist()):
        more["proc"][i] = identities[pid]
    return _merged(np.concatenate([keys, still["key"]]), np.concatenate([values, more]), "count", "sum_ns")


def _merged(keys: np.ndarray, values: np.ndarray, *sums: str) -> tuple[np.ndarray, np.ndarray]:
    """One element for equal keys: the sums of these fields, and the largest ``max_ns``."""
    _, first, group = np.unique(
        np.ascontiguousarray(keys).view(f"V{keys.itemsize}"), return_index=True, return_inverse=True
    )
    out, group = values[first], group.reshape(-1)
    for name in sums:
        out[name] = 0
        np.add.at(out[name], group, values[name])
    np.maximum.at(out["max_ns"], group, values["max_ns"])
    return keys[first], out


def _kinds(nr: np.ndarray, state: np.ndarray) -> np.ndarray:
    """slow or waiting, by the call. A read that a signal can interrupt waits for input. A thread outside of a call is
    delayed.
    """
    what = classes()[np.minimum(nr, len(classes()) - 1)]
    waits = (what == _WAITS) | (what == _POLLS) | ((what == _BY_FD) & (state == _SLEEPING))
    return np.where((nr != _NO_CALL) & waits, _WAITING, _SLOW)


def _call(nr: np.ndarray) -> np.ndarray:
    known = names()
    return np.where(nr < len(known), known[np.minimum(nr, len(known) - 1)], b"")


def _longest(chosen: np.ndarray, ns: np.ndarray, most: int) -> np.ndarray:
    """Indices of the longest of the chosen elements."""
    at = np.flatnonzero(chosen & (ns >= LEAST_NS))
    return at[np.argsort(-ns[at].astype(np.int64), kind="stable")[:most]]


def off_cpu(
    keys: np.ndarray,
    values: np.ndarray,
    asleep: Sequence[Asleep | PendingThread],
    interval_ns: dict[int, int],
    identities: dict[int, np.void],
    named: FrameNames,
) -> Batch:
    """Where threads were off the CPU, longest first; threads that slept all the time are added from /proc."""
    kind, ns = _kinds(keys["nr"], keys["state"]), values["sum_ns"]
    ready = keys["state"] == _READY
    at = np.concatenate(
        [
            _longest(~ready & (kind == _SLOW), ns, MOST["slow"]),
            _longest(~ready & (kind == _WAITING), ns, MOST["waiting"]),
            _longest(ready, ns, MOST["ready"]),
        ]
    )
    rows = decode(values[at], "off_cpu").rows
    rows["state"], rows["kind"], rows["syscall"] = keys["state"][at], kind[at], _call(keys["nr"][at])
    for row, i in zip(rows, at, strict=True):
        key = keys[i]
        row["kernel_stack"] = named.kernel(int(key["kernel_stack"])).encode()
        row["user_stack"] = named.user(int(key["user_stack"]), int(key["pid"])).encode()
    still = TABLES["off_cpu"].empty(len(asleep))
    for row, one in zip(still, asleep, strict=True):
        _identify(row, identities[one.pid])
        row["state"], row["count"] = one.state, 1
        row["syscall"], row["kind"] = _call(np.array([one.nr]))[0], _kinds(np.array([one.nr]), np.array([one.state]))[0]
        row["sum_ns"] = row["max_ns"] = interval_ns[one.pid]
        if isinstance(one, Asleep):
            row["count"], row["sum_ns"] = one.threads, interval_ns[one.pid] * one.threads
        else:
            row["tid"], row["sum_ns"], row["max_ns"], row["interval_ns"] = one.tid, one.ns, one.ns, max(1, one.of_ns)
            row["waker_pid"], row["waker_tid"], row["waker_comm"] = (
                one.by_pid or NULL_I64,
                one.by_tid or NULL_I64,
                one.by_comm,
            )
        row["kernel_stack"] = one.function.encode()[:512]
    rows = np.concatenate([rows, still])
    return Batch("off_cpu", rows[np.lexsort((-rows["sum_ns"], rows["kind"]))])


def on_cpu(keys: np.ndarray, values: np.ndarray, named: FrameNames) -> Batch:
    """Where threads ran, those with most time first. Running code is elsewhere at each sample, so there is one row per
    thread, call and function, with its most frequent stack.
    """
    order = np.argsort(-values["sum_ns"].astype(np.int64), kind="stable")
    best: dict[tuple[int, int, str], int] = {}
    stacks, of = list[str](), np.zeros(len(keys), np.int64)
    for n, i in enumerate(order.tolist()):
        text = named.user(int(keys["user_stack"][i]), int(keys["pid"][i])) if n < NAMED else ""
        key = int(keys["tid"][i]), int(keys["nr"][i]), text.partition(";")[0]
        if key not in best:
            best[key] = len(stacks)
            stacks.append(text)
        of[i] = best[key]
    sums, times = (np.bincount(of, values[name], len(stacks)).astype(np.int64) for name in ("sum_ns", "count"))
    first = np.zeros(len(stacks), np.int64)
    first[of[order[::-1]]] = order[::-1]
    at = _longest(np.ones(len(stacks), np.bool_), sums, MOST["ran"])
    rows = decode(values[first[at]], "on_cpu").rows
    rows["syscall"], rows["sum_ns"], rows["count"] = _call(keys["nr"][first[at]]), sums[at], times[at]
    rows["user_stack"] = [stacks[i].encode() for i in at]
    return Batch("on_cpu", rows)


def _identify(row: np.void, proc: np.void) -> None:
    for name in ("pid", "proc_start_ns", "comm", "cgroup_id"):
        row[name] = proc[name].astype(np.int64) if name != "comm" else proc[name]


def block_io(keys: np.ndarray, values: np.ndarray, unfinished: np.ndarray, until_ns: int, interval_ns: int) -> Batch:
    """Each process's requests, those with most time first, and one row per disk for all together. unfinished: requests
    that are still in the device or its queue.
    """
    out = []
    keys, values = _with_open(keys, values, unfinished, until_ns)
    for disk in np.unique(keys["disk"]):
        disk_keys, disk_values = keys[keys["disk"] == disk], values[keys["disk"] == disk]
        whole = decode(disk_values[:1], "block_io").rows
        for name in ("pid", "tid", "proc_start_ns", "cgroup_id"):
            whole[name] = TABLES["block_io"].by_name[name].null
        whole["comm"], whole["op"] = b"", TABLES["block_io"].code("op", "all")
        for name in ("count", "unfinished", "bytes", "errors", "sum_ns", "queued_ns"):
            whole[name] = disk_values[name].sum()
        whole["max_ns"], whole["hist"] = disk_values["max_ns"].max(), disk_values["hist"].sum(axis=0)
        order = np.argsort(-disk_values["sum_ns"].astype(np.int64), kind="stable")[: MOST["blocks"]]
        rows = decode(disk_values[order], "block_io").rows
        rows["op"], rows["tid"] = disk_keys["op"][order], TABLES["block_io"].by_name["tid"].null
        out += [whole, rows]
    rows = np.concatenate([TABLES["block_io"].empty(0), *out])
    rows["in_flight"] = rows["sum_ns"] / interval_ns
    return Batch("block_io", rows)


def _with_open(
    keys: np.ndarray, values: np.ndarray, unfinished: np.ndarray, until_ns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Adds an element for each request that is not finished, with its time so far."""
    more_keys, more = np.zeros(len(unfinished), keys.dtype), np.zeros(len(unfinished), values.dtype)
    more_keys["disk"], more_keys["op"] = unfinished["disk"], unfinished["op"]
    more_keys["pid"] = unfinished["proc"]["pid"]
    issued = unfinished["issued_ns"] > 0
    taken = (until_ns - unfinished["issued_ns"].astype(np.int64)).clip(0)
    more["unfinished"], more["proc"], more["device"] = 1, unfinished["proc"], unfinished["device"]
    more["sum_ns"] = more["max_ns"] = np.where(issued, taken, 0)
    more["queued_ns"] = np.where(
        issued,
        unfinished["issued_ns"] - unfinished["begun_ns"],
        (until_ns - unfinished["begun_ns"].astype(np.int64)).clip(0),
    )
    sums = ("count", "unfinished", "bytes", "errors", "sum_ns", "queued_ns", "hist")
    return _merged(np.concatenate([keys, more_keys]), np.concatenate([values, more]), *sums)


def lock_contention(keys: np.ndarray, values: np.ndarray, named: FrameNames) -> Batch:
    order = np.argsort(-values["sum_ns"].astype(np.int64), kind="stable")[: MOST["locks"]]
    keys, rows = keys[order], decode(values[order], "lock_contention").rows
    rows["path"] = keys["path"]
    for row, key in zip(rows, keys, strict=True):
        flags = int(key["flags"])
        row["kind"] = " ".join(word for bit, word in _KINDS if flags & bit).encode() or b"semaphore"
        row["lock"] = fitted(named.lock(int(key["lock"]), int(key["kernel_stack"])).encode(), 64)
        row["address"] = f"{int(key['lock']):#x}".encode()
        row["kernel_stack"] = named.kernel(int(key["kernel_stack"])).encode()
    return Batch("lock_contention", rows)


def memory_stall(keys: np.ndarray, values: np.ndarray) -> Batch:
    rows = decode(values, "memory_stall").rows
    rows["kind"] = keys["kind"]
    return Batch("memory_stall", rows)


def syn_ack(keys: np.ndarray, values: np.ndarray) -> Batch:
    rows = decode(values, "syn_ack").rows
    rows["sport"], rows["netns"] = keys["port"], keys["netns"]
    return Batch("syn_ack", rows)


def calls(keys: np.ndarray, values: np.ndarray) -> Batch:
    """All calls of the processes, those with most time first."""
    order = np.argsort(-values["sum_ns"].astype(np.int64), kind="stable")[: MOST["calls"]]
    keys, rows = keys[order], decode(values[order], "syscall_latency").rows
    rows["syscall"] = _call(keys["nr"])
    rows["nr"] = np.where(keys["nr"] < len(names()), keys["nr"] % (len(names()) // 2), keys["nr"])
    rows["basis"], rows["sample_rate"] = TABLES["syscall_latency"].code("basis", "all"), 1.0
    return Batch("syscall_latency", rows)


def all_of(
    counted: Counted,
    until_ns: int,
    identities: dict[int, np.void],
    profiles: dict[int, tuple[str, int]],
    asleep: Sequence[Asleep | PendingThread],
    named: FrameNames,
) -> Iterator[Batch]:
    """One batch per table that has rows. profiles: as for ``marked``."""
    maps, took = counted.maps, counted.interval_ns
    if "offcpu_sums" in maps:
        each = {pid: max(1, took["offcpu"] - later_ns) for pid, (_, later_ns) in profiles.items()}
        yield off_cpu(*gone(counted, until_ns, identities), asleep, each, identities, named)
    made: dict[str, Callable[[np.ndarray, np.ndarray], Batch]] = {
        "contention": lambda keys, values: lock_contention(keys, values, named),
        "oncpu": lambda keys, values: on_cpu(keys, values, named),
        "reclaim": memory_stall,
        "synack": syn_ack,
        "calls": calls,
    }
    for family, one in made.items():
        if f"{family}_sums" in maps:
            yield one(*maps[f"{family}_sums"])
    if "block_sums" in maps:
        yield block_io(*maps["block_sums"], maps["block_requests"][1], until_ns, took["block"])


def marked(batch: Batch, counted: Counted, profiles: dict[int, tuple[str, int]], t_ns: int) -> Batch:
    """Marks the rows with their profile: by process, (name, how much later than the first it began, ns). Rows without a
    profiled process get the first one.
    """
    family = {
        "on_cpu": "oncpu",
        "off_cpu": "offcpu",
        "block_io": "block",
        "lock_contention": "contention",
        "memory_stall": "reclaim",
        "syn_ack": "synack",
        "syscall_latency": "calls",
    }[batch.table]
    first = next(iter(profiles.values()))
    pids = batch.rows["pid"].tolist() if "pid" in (batch.rows.dtype.names or ()) else [0] * len(batch.rows)
    its = [profiles.get(pid, first) for pid in pids]
    batch.rows["t_ns"], batch.rows["investigation"] = t_ns, [name.encode() for name, _ in its]
    attached = [max(1, counted.interval_ns[family] - later_ns) for _, later_ns in its]
    batch.rows["interval_ns"] = np.where(batch.rows["interval_ns"] > 0, batch.rows["interval_ns"], attached)
    return batch
