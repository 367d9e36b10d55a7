"""Connections by Unix sockets in the form of TCP connections, so that both are treated alike in the search for peers
and servers. Pure.
"""

from __future__ import annotations

import numpy as np

from agent.columns import NULL_I64
from agent.common.copies import together
from agent.correlate.rows import groups
from agent.correlate.words import name_unix
from agent.tables import TABLES

_CLIENT, _SERVER = (TABLES["tcp_rtt"].code("role", name) for name in ("client", "server"))


def with_unix(form: np.dtype[np.void], rtt: np.ndarray | None, contacted: np.ndarray) -> np.ndarray:
    """Rows of ``tcp_rtt`` and, for each row of ``unix_peer``, one of the client and one of the server. They have no
    network time, so they never count as a slow network. form: of the result.
    """
    for i in groups([contacted["peer"]])[0] if len(contacted) else ():
        name_unix(contacted["peer"][i].tobytes(), bytes(contacted["path"][i]))
    out = np.zeros(2 * len(contacted), form)
    client, server = out[: len(contacted)], out[len(contacted) :]
    for name in ("netns", "sport", "cgroup_id", "proc_start_ns", "srtt_us", "raw_min_us", "segments", "doubled"):
        if name in (form.names or ()):
            out[name] = NULL_I64
    for name in set(contacted.dtype.names or ()) & set(form.names or ()):
        client[name] = contacted[name]
    client["role"], client["samples"], client["interval_ns"] = _CLIENT, 1, NULL_I64
    server["t_ns"], server["pid"], server["comm"] = contacted["t_ns"], contacted["server_pid"], contacted["server_comm"]
    raw = np.ascontiguousarray(contacted["peer"]).view(np.uint8).reshape(len(contacted), 18)
    server["role"], server["saddr"] = _SERVER, np.ascontiguousarray(raw[:, :16]).view("V16").reshape(-1)
    server["sport"] = np.ascontiguousarray(raw[:, 16:]).view("<u2").reshape(-1)
    merged = out if rtt is None else together((rtt, out))
    return np.asarray(merged[np.argsort(merged["t_ns"], kind="stable")])
