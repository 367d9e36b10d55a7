"""TLS handshakes of OpenSSL, shared or built in; see bpf/tls.bpf.c."""

from __future__ import annotations

import numpy as np

from agent.batch import Batch
from agent.instruments.kind import setup
from agent.kernel.probe import Probe, Program, Ring
from agent.kernel.wire_structs import decode, wire_records
from agent.tables import TABLES

#: RFC 8446 4.2.1, RFC 9147 5.3
_PROTOCOLS = {0x0300: b"ssl3", 0x0301: b"1.0", 0x0302: b"1.1", 0x0303: b"1.2", 0x0304: b"1.3",
              0xFEFF: b"dtls1.0", 0xFEFD: b"dtls1.2", 0xFEFC: b"dtls1.3"}  # fmt: skip
#: openssl/x509_vfy.h, shortened
_VERIFY = {
    2: b"no issuer certificate",
    7: b"bad signature",
    9: b"not yet valid",
    10: b"expired",
    18: b"self-signed",
    19: b"self-signed in chain",
    20: b"unknown issuer",
    21: b"unverified first certificate",
    23: b"revoked",
    24: b"invalid CA",
    26: b"unfit purpose",
    62: b"wrong host name",
    64: b"wrong address",
    66: b"key too small",
}
_FAILED = TABLES["tls_handshake"].code("result", "failed")
_CAUSES = {0: b"", 1: b"handshake failed", 2: b"connection closed"}


def decode_handshakes(records: np.ndarray) -> Batch:
    """Records of ``struct tls_event`` -> rows of tls_handshake."""
    batch = decode(records, "tls_handshake")
    rows = batch.rows
    rows["tls_version"] = [_PROTOCOLS.get(code, b"") for code in records["protocol"].tolist()]
    rows["error"] = [_CAUSES.get(code, b"") for code in records["cause"].tolist()]
    refused = (records["result"] == _FAILED) & (rows["verify_result"] > 0)
    if refused.any():
        codes = records["verify_result"][refused].tolist()
        rows["error"][refused] = [b"certificate: " + _VERIFY.get(code, b"error %d" % code) for code in codes]
    return batch


PROBE = Probe(
    name="tls",
    parts=("tls_ssl.h", "tls_socket.h"),
    after=("tcp",),
    programs=(
        Program("tls_client", "uprobe", loses="handshakes"),
        Program("tls_server", "uprobe", loses="handshakes"),
        Program("tls_either", "uprobe", loses="handshakes of libraries that are not quite OpenSSL"),
        Program("tls_return", "uretprobe", loses="handshakes"),
        Program("tls_free", "uprobe", loses="abandoned handshakes"),
        Program("tls_exit", target="sched_process_exit", loses="handshakes cut off by the end of their process"),
    ),
    rings=(
        Ring("tls_events", "tls_event", decode_handshakes),
        Ring("tls_exits", "tls_exit_event", wire_records),  # rows with the process's open handshakes (openssl.py)
    ),
    maps=("tls_sites", "tls_layouts", "tls_opened"),
    counts=("tls_shares",),
    setup=setup,
)
