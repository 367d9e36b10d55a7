"""Converts records of Go limiters' decisions to rows of ``limiter_decision``, by the declarations of their libraries.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64
from agent.common.copies import copied, only
from agent.kernel.wire_structs import decode
from agent.limiters.catalogue import declared, seen
from agent.limiters.decision import hashed
from agent.limiters.naming import WIDTH, Names
from agent.limiters.reading import CANCELLED, UNKNOWN, number
from agent.tables import TABLES

__all__ = ["CANCELLED", "decided"]

#: Records -> the ids of their limiters, S (n,).
Called = Callable[[np.ndarray], np.ndarray]
_SOURCE = TABLES["limiter_decision"].code("source", "uprobe")


def unnamed(records: np.ndarray) -> np.ndarray:
    """Ids of limiters with unknown callers, or with the name of their declaration."""
    names = Names()
    ids = (
        names.called(one.limiter) if declared(name) else names.of("", one.limiter, None) for name, one in seen().items()
    )
    known = np.array([*ids], f"S{WIDTH}")
    return np.asarray(known[records["library"]])


def at_once(records: np.ndarray, called: Called) -> list[Batch]:
    """Rows of decisions that do not sleep, in the same order; limiter_waits.py decodes the others."""
    awake = only(records, (records["asleep"] | records["woke"]) == 0)
    return [Batch("limiter_decision", decided(awake, called))] if len(awake) else []


def keys(texts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Limited keys, hashed, S16 (n,); empty if there is none. texts: their first bytes. sizes: bytes of all, u64:
    longer keys are distinguished by that and their beginning.
    """
    out = np.zeros(len(texts), "S16")
    known = np.flatnonzero((sizes != UNKNOWN) & (sizes > 0))
    width = texts.dtype.itemsize - 1
    pairs = np.empty(len(known), [("text", texts.dtype), ("size", "<u8")])
    pairs["text"], pairs["size"] = texts[known], sizes[known]
    each, which = np.unique(pairs, return_inverse=True)
    made = np.zeros(len(each), "S16")
    for place, (text, size) in enumerate(each.tolist()):
        whole = text.ljust(min(size, width), b"\0")
        made[place] = hashed(whole if size <= width else whole + b" %d" % size)
    out[known] = made[which]
    return out


def decided(records: np.ndarray, called: Called) -> np.ndarray:
    """A row for each record, as of the return from the decision. Values that a library does not provide are unknown; a
    call without a cost has cost 1. called: the limiters' ids.
    """
    r = copied(records)
    rows = decode(r, "limiter_decision").rows
    rows["limiter_id"] = called(r)
    rows["member"] = np.where(r["limiter"] == UNKNOWN, NULL_I64, r["limiter"].astype(np.int64))
    rows["source"] = _SOURCE
    rows["cost"] = np.where(r["n"] == UNKNOWN, 1.0, number(r["n"]))
    rows["key"] = keys(r["key_text"], r["key_size"])
    libraries = tuple(seen().items())
    rows["sample_rate"] = 1 / np.maximum(r["every"], 1).astype(np.float64)
    for library in np.unique(r["library"]).tolist():
        name, one = libraries[library]
        of_library = r["library"] == library
        rows["library"][of_library] = name.encode()[:48]
        for column, values in one.read(only(r, of_library)).items():
            rows[column][of_library] = values
    return rows
