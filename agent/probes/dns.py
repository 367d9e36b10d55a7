"""Names that are looked up; see bpf/dns.bpf.c."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.batch import Batch
from agent.columns import NULL_I64, fitted
from agent.common.address import peer_bytes
from agent.instruments.kind import setup
from agent.kernel.probe import Probe, Program, Ring
from agent.kernel.wire_structs import decode, make_peer
from agent.tables import TABLES

_TABLE = TABLES["dns_lookup"]
_OK, _NXDOMAIN, _NODATA, _SERVFAIL, _REFUSED, _TIMEOUT, _ERROR = range(7)
_OF_LIBC, _SOCKET = (_TABLE.code("source", name) for name in ("getaddrinfo", "socket"))
#: What Go's net.DNSError says, and what that is.
_PROBLEMS = (
    (b"no such host", _NXDOMAIN),
    (b"misbehaving", _SERVFAIL),
    (b"refused", _REFUSED),
    (b"timeout", _TIMEOUT),
    (b"deadline", _TIMEOUT),
)
#: What getaddrinfo returns, the same in glibc and musl.
_NONAME, _AGAIN, _NO_ADDRESS = -2, -3, -5
#: The shortest time-out of a resolver that is set in whole seconds.
_LEAST_TIMEOUT_NS = 990_000_000
_FAMILIES = {0: b"A+AAAA", 2: b"A", 10: b"AAAA"}
#: RFC 1035 3.2.2, and what came later and is asked for often.
_TYPES = {
    1: b"A",
    2: b"NS",
    5: b"CNAME",
    6: b"SOA",
    12: b"PTR",
    15: b"MX",
    16: b"TXT",
    28: b"AAAA",
    33: b"SRV",
    64: b"SVCB",
    65: b"HTTPS",
}


def question(raw: bytes) -> tuple[bytes, bytes]:
    """(name, type) of a question as it is in a packet, from anybody: as much of the name as there is; labels' bytes as
    they are.
    """
    labels, at = [], 0
    while at < len(raw) and 0 < raw[at] < 64:
        labels.append(raw[at + 1 : at + 1 + raw[at]])
        at += 1 + raw[at]
    requests = int.from_bytes(raw[at + 1 : at + 3], "big") if at < len(raw) and not raw[at] else 0
    return b".".join(labels) or b".", _TYPES.get(requests, b"TYPE%d" % requests if requests else b"")


def _peer(server: bytes) -> bytes:
    """ip:port or [ip6]:port, as a program says it -> the stored form of a peer; zeros where it is something else."""
    address, _, port = server.decode("ascii", "replace").rpartition(":")
    try:
        return peer_bytes(address.strip("[]"), int(port))
    except (OSError, ValueError, OverflowError):
        return bytes(18)


def shown(name: bytes) -> bytes:
    """A name without what would act on a terminal: other bytes than ASCII's printable ones as RFC 4343 writes them
    (``\\\\027``).
    """
    if name.isascii() and name.decode().isprintable() and b" " not in name:
        return name
    return b"".join(bytes((c,)) if 33 <= c <= 126 else b"\\%03d" % c for c in name)


def results(records: np.ndarray) -> np.ndarray:
    """How each lookup ended, as codes of ``result``."""
    code, rcode = records["code"].astype(np.int64), records["rcode"]
    by_call = records["source"] == _OF_LIBC
    unanswered = by_call & (code == _AGAIN) & (records["duration_ns"] >= _LEAST_TIMEOUT_NS)
    answered = np.select(
        [rcode == 0, rcode == 2, rcode == 3, rcode == 5], [_OK, _SERVFAIL, _NXDOMAIN, _REFUSED], _ERROR
    )
    return np.select(
        [
            (records["source"] != _SOCKET) & (code == 0),
            by_call & (code == _NONAME),
            by_call & (code == _NO_ADDRESS),
            (records["source"] == _SOCKET) & (records["answered"] > 0),
            *(np.char.find(records["problem"], words) >= 0 for words, _ in _PROBLEMS),
            rcode == 2,
            (rcode == 5) | (records["refused"] > 0),
            (records["unanswered"] > 0) | unanswered,
        ],
        [_OK, _NXDOMAIN, _NODATA, answered, *(of for _, of in _PROBLEMS), _SERVFAIL, _REFUSED, _TIMEOUT],
        _ERROR,
    ).astype(np.int8)


def _each(values: np.ndarray, of: Callable[[bytes], bytes], width: int) -> np.ndarray:
    """``of`` of each distinct one."""
    distinct, inverse = np.unique(values, return_inverse=True)
    made = [fitted(of(one), width) for one in distinct.tolist()]
    return np.array(made, f"S{width}")[inverse.reshape(-1)]


def decode_lookups(records: np.ndarray) -> Batch:
    """Records of ``struct dns_event`` -> rows of dns_lookup."""
    batch = decode(records, _TABLE.name)
    rows, width = batch.rows, _TABLE.by_name["name"].width
    by_socket = records["source"] == _SOCKET
    answered_or_refused = (records["answered"] > 0) | (records["refused"] > 0)
    requests = records["unanswered"].astype(np.int64) + answered_or_refused
    rows["peer"] = make_peer(records["peer_addr"], records["peer_port"])
    named = (records["server"] != b"") & (records["peer_port"] == 0)
    if named.any():
        rows["peer"][named] = [np.void(_peer(server)) for server in records["server"][named].tolist()]
    rows["tries"] = np.where(requests > 0, requests, NULL_I64)
    rows["code"] = np.where(records["source"] == _OF_LIBC, records["code"].astype(np.int64), NULL_I64)
    rows["result"] = results(records)
    rows["name"] = np.where(
        by_socket,
        _each(records["name"], lambda raw: shown(question(raw.ljust(128, b"\0"))[0]) if raw else b"", width),
        _each(records["name"], shown, width),
    )
    of_family = np.array([_FAMILIES.get(f, b"") for f in records["family"].tolist()], "S8")
    of_family[records["source"] != _OF_LIBC] = b""
    rows["qtype"] = np.where(
        by_socket, _each(records["name"], lambda raw: question(raw.ljust(128, b"\0"))[1] if raw else b"", 8), of_family
    )
    return batch


PROBE = Probe(
    name="dns",
    programs=(
        Program("dns_in", "uprobe", loses="names that programs look up"),
        Program("dns_out", "uretprobe", loses="names that programs look up"),
        Program("dns_go_in", "uprobe", loses="names that Go programs look up"),
        Program("dns_go_out", "uprobe", loses="names that Go programs look up"),
    ),
    rings=(Ring("dns_events", "dns_event", decode_lookups),),
    counts=("dns_shares",),
    options={"DNS_LEAST_NS": 200_000, "DNS_SILENT_NS": 500_000_000},
    setup=setup,
)
