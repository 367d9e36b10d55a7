"""Connections, handshakes and lookups of names."""

from __future__ import annotations

from agent.columns import boolean, enum, hist, i64, peer, text
from agent.tables.shared import INTERVAL, PROC, SOCK, table

DECLARED = (
    table(
        "tcp_rtt",
        "the smoothed round-trip times of one connection in an interval",
        *PROC,
        *SOCK,
        INTERVAL,
        i64("samples", "smoothed RTTs that were sampled: a part of the segments"),
        i64("rtt_min_us", "smallest smoothed RTT", "us"),
        i64("rtt_max_us", "largest smoothed RTT", "us"),
        i64("rtt_sum_us", "sum of the sampled smoothed RTTs", "us"),
        i64("srtt_us", "last smoothed RTT", "us"),
        i64(
            "raw_min_us",
            "shortest measured round trip of one segment, not smoothed; includes the peer's delayed acknowledgement",
            "us",
        ),
        i64("raw_max_us", "longest measured round trip of one segment, not smoothed", "us"),
        i64("segments", "data segments sent"),
        i64("again", "segments retransmitted"),
        i64("doubled", "segments retransmitted without need: the peer already had them (DSACK)"),
        hist("us"),
        measure="srtt_us",
    ),
    table(
        "tcp_connect",
        "a connect that ended",
        *PROC,
        *SOCK,
        i64("duration_ns", "from SYN_SENT to the end of the connect", "ns"),
        enum("result", "ok failed aborted", "aborted: the program closed the socket before the connect ended"),
        i64("errno", "positive errno of a failed connect", "", "error.type"),
        measure="duration_ns",
    ),
    table(
        "tcp_retransmit",
        "a retransmitted segment, or the number of them in an interval",
        *PROC,
        *SOCK,
        enum("kind", "data synack syn", "what was retransmitted"),
        text("state", 16, "TCP state at the retransmission", "network.connection.state"),
        i64("count", "segments"),
        measure="count",
    ),
    table(
        "tcp_reset",
        "a TCP reset",
        *PROC,
        *SOCK,
        enum("direction", "sent received", "sent by this host, or received", "network.io.direction"),
        boolean(
            "complete",
            "whether this kernel reports all resets that it sends; before Linux 6.10, resets that refuse"
            " a connect to a closed port are missing",
        ),
    ),
    table(
        "tcp_close",
        "the end of a connection; if its program gives up an answer, when it closes the connection",
        *PROC,
        *SOCK,
        i64("duration_ns", "from ESTABLISHED to CLOSED", "ns"),
        i64("bytes_in", "bytes received", "bytes"),
        i64("bytes_out", "bytes acknowledged by the peer", "bytes"),
        i64("retransmits", "segments retransmitted"),
        i64("srtt_us", "last smoothed RTT", "us"),
        i64(
            "waited_ns",
            "time that the client had waited when it closed the connection without an answer to its last request, to"
            " one kernel tick; null: no such wait",
            "ns",
        ),
        measure="duration_ns",
    ),
    table(
        "service_latency",
        "the response times of one process on one listening port in an interval, from the arrival of"
        " a request to the first write after it. The resolution is one kernel tick (4 ms at 250 Hz)."
        " A response is counted when the next request is read, or within a second",
        *PROC,
        *SOCK,
        INTERVAL,
        i64("requests", "answered requests (lower bound); first bucket of hist: faster than one kernel tick"),
        i64("unanswered", "requests that had no answer when their connection ended"),
        i64(
            "waiting",
            "requests without an answer for half a second or longer, of the sampled connections; max_ns may be that of"
            " one of them",
        ),
        i64("sum_ns", "total", "ns"),
        i64("held_ns", "the part of sum_ns from requests of 128 ms or longer, accurate to a factor of two", "ns"),
        i64("max_ns", "slowest response; peer and tid are of this response", "ns"),
        i64("max_from_ns", "arrival of the slowest request, CLOCK_BOOTTIME", "ns"),
        i64("p50_ns", "median response time, accurate to a factor of two; 0: faster than one kernel tick", "ns"),
        i64("p90_ns", "90th percentile of the response time, with the accuracy of p50_ns", "ns"),
        i64("uid", "real user id of the process"),
        hist("ns"),
        measure="max_ns",
    ),
    table(
        "service_answer",
        "the answers of one code from one server to one process of this host in an interval. A"
        " sample: about 125 answers a second of each connection. The code comes from the first bytes"
        " of the answer, so TLS and HTTP/2 are not seen",
        *PROC,
        *SOCK,
        INTERVAL,
        text("protocol", 12, "protocol: http redis postgresql mysql memcached amqp"),
        text(
            "code",
            12,
            "error code: HTTP status (5xx and 429), error prefix of Redis (OOM, LOADING ..., ERR unknown: a"
            " subcommand), SQLSTATE of PostgreSQL, error number of MySQL, SERVER_ERROR of memcached, reply code of"
            " AMQP; empty: no error",
        ),
        i64("count", "answers"),
        i64("uid", "real user id of the process that read the answers; that user's programs can forge them"),
        measure="count",
    ),
    table(
        "unix_peer",
        "the requests of one process to one server over a Unix stream socket in an interval",
        *PROC,
        peer("the server's socket as unix:NUMBER; the number identifies path and file system"),
        text("path", 108, "path of the socket; an abstract name begins with @"),
        INTERVAL,
        i64("server_pid", "process that answered"),
        i64("server_start_ns", "start of that process, CLOCK_BOOTTIME", "ns"),
        text("server_comm", 16, "command name of that process"),
        i64("requests", "answered requests, a lower bound"),
        i64(
            "sum_ns",
            "sum of the response times of 1 ms or longer, from the server's read of the request to the client's read of"
            " the answer",
            "ns",
        ),
        i64("max_ns", "the longest", "ns"),
        measure="max_ns",
    ),
    table(
        "tls_handshake",
        "a TLS handshake",
        *PROC,
        *SOCK,
        text("library", 16, "TLS library"),
        text("library_version", 32, "version of the library"),
        i64("duration_ns", "elapsed time from the first call to the end", "ns"),
        i64("in_call_ns", "part of duration_ns inside calls of the library", "ns"),
        i64("calls", "number of calls of the library"),
        enum("result", "ok failed abandoned", "abandoned: the program gave up before the end"),
        text("error", 64, "why it failed", "error.type"),
        i64(
            "verify_result",
            "result of the certificate check (X509_V_ERR number, 0: valid), also if the handshake continued; null: no"
            " certificate",
        ),
        text("tls_version", 8, "negotiated version, for example 1.3", "tls.protocol.version"),
        measure="duration_ns",
    ),
    table(
        "dns_lookup",
        "a DNS lookup by a call of the resolver; if only the socket was seen: one answer, or one wait"
        " without an answer",
        *PROC,
        peer("the last name server that was queried"),
        text(
            "name",
            128,
            "the name. Unprintable and non-ASCII bytes are escaped (\\027); a long name is cut and ends in"
            " a hash; empty: not known",
            "dns.question.name",
        ),
        text("qtype", 8, "query type: A AAAA A+AAAA ..."),
        i64("duration_ns", "from the call to the result, or until the program gave up", "ns"),
        i64("tries", "queries sent, if seen: those without an answer, and the last one"),
        enum(
            "result",
            "ok nxdomain nodata servfail refused timeout error",
            "how it ended; nodata: the name has no such address",
        ),
        i64("rcode", "response code of the last answer (RFC 1035 4.1.1), if seen"),
        i64("code", "what getaddrinfo returned, EAI_*"),
        enum(
            "source",
            "getaddrinfo socket go",
            "how it was observed. getaddrinfo: call of the C library; socket: answer on a socket; go: Go's resolver",
        ),
        i64("uid", "real user id of the process"),
        measure="duration_ns",
    ),
)
