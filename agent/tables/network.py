"""Connections, handshakes and lookups of names."""

from __future__ import annotations

from agent.columns import boolean, enum, hist, i64, peer, text
from agent.tables.shared import INTERVAL, PROC, SOCK, table

DECLARED = (
    table(
        "tcp_rtt",
        "smoothed round-trip time of a connection in an interval",
        *PROC,
        *SOCK,
        INTERVAL,
        i64("samples", "RTT samples counted (gated per socket)"),
        i64("rtt_min_us", "smallest smoothed RTT", "us"),
        i64("rtt_max_us", "largest smoothed RTT", "us"),
        i64("rtt_sum_us", "sum over samples", "us"),
        i64("srtt_us", "last smoothed RTT", "us"),
        i64(
            "raw_min_us",
            "shortest round trip of a single segment that was seen, not smoothed; the peer may have held back what"
            " acknowledged it",
            "us",
        ),
        i64("raw_max_us", "and the longest", "us"),
        i64("segments", "segments with data that were sent"),
        i64("again", "segments sent again"),
        i64("doubled", "of these, as many as the peer said it had already (DSACK): they had not been lost"),
        hist("us"),
        measure="srtt_us",
    ),
    table(
        "tcp_connect",
        "a connect that ended",
        *PROC,
        *SOCK,
        i64("duration_ns", "from SYN_SENT to the end of the connect", "ns"),
        enum("result", "ok failed aborted", "aborted: closed by the program before it was decided"),
        i64("errno", "positive errno of a failed connect", "", "error.type"),
        measure="duration_ns",
    ),
    table(
        "tcp_retransmit",
        "a retransmitted segment, or an interval's count",
        *PROC,
        *SOCK,
        enum("kind", "data synack syn", "what was sent again"),
        text("state", 16, "TCP state then", "network.connection.state"),
        i64("count", "segments"),
        measure="count",
    ),
    table(
        "tcp_reset",
        "a TCP reset",
        *PROC,
        *SOCK,
        enum("direction", "sent received", "who sent it", "network.io.direction"),
        boolean(
            "complete",
            "whether this kernel tells of all resets that it sends; before Linux 6.10 those in answer to a connect that"
            " nobody listens for are missing",
        ),
    ),
    table(
        "tcp_close",
        "the end of a connection",
        *PROC,
        *SOCK,
        i64("duration_ns", "from ESTABLISHED to CLOSE", "ns"),
        i64("bytes_in", "bytes received", "bytes"),
        i64("bytes_out", "bytes acknowledged by the peer", "bytes"),
        i64("retransmits", "segments sent again"),
        i64("srtt_us", "last smoothed RTT", "us"),
        i64(
            "waited_ns",
            "where the program of the end that had connected closed it before anything came in answer to what it last"
            " sent: for how long it had waited, in the kernel's ticks; null where an answer had come, or the peer"
            " closed first",
            "ns",
        ),
        measure="duration_ns",
    ),
    table(
        "service_latency",
        "how long a process took to answer on connections that it had accepted on a port, in an interval: from the"
        " arrival of what it read to what it wrote next. In the kernel's ticks (4 ms where it has 250 a second); an"
        " answer is seen when the next request is read, or within a second",
        *PROC,
        *SOCK,
        INTERVAL,
        i64(
            "requests", "requests that were answered, at least; those of the first bucket were quicker than can be told"
        ),
        i64("unanswered", "requests whose connection ended without an answer"),
        i64(
            "waiting",
            "requests that wait for half a second or longer already, of those that were looked at; such a one may be"
            " the slowest",
        ),
        i64("sum_ns", "total", "ns"),
        i64("held_ns", "of it, by those of 128 ms or longer, to a factor of two", "ns"),
        i64("max_ns", "the slowest; its connection's peer and the thread that read it are those of this row", "ns"),
        i64("max_from_ns", "when the slowest one's request had come, CLOCK_BOOTTIME", "ns"),
        i64("p50_ns", "what half of the requests took at most, to a factor of two; 0: quicker than can be told", "ns"),
        i64("p90_ns", "and nine in ten", "ns"),
        i64("uid", "the process's real user"),
        hist("ns"),
        measure="max_ns",
    ),
    table(
        "service_answer",
        "what a server answered to a process of this host, in an interval, as far as it was looked at: of each"
        " connection 125 answers a second at most, and some more. By the answer's first bytes; without TLS, HTTP/1"
        " only",
        *PROC,
        *SOCK,
        INTERVAL,
        text("protocol", 12, "what it is spoken in: http redis postgresql mysql memcached amqp"),
        text(
            "code",
            12,
            "of an error: HTTP status (5xx and 429), the word of Redis (OOM, LOADING ...), SQLSTATE of PostgreSQL,"
            " number of MySQL, SERVER_ERROR of memcached, reply code of AMQP; empty: no error",
        ),
        i64("count", "answers"),
        i64("uid", "the real user of the process that read them: what a program of his says was answered"),
        measure="count",
    ),
    table(
        "unix_peer",
        "a process that asked a server by its Unix stream socket, in an interval",
        *PROC,
        peer("the server's socket: unix: and a number that stands for its path and file system"),
        text("path", 108, "its path; of an abstract one with @ before the name"),
        INTERVAL,
        i64("server_pid", "who answered"),
        i64("server_start_ns", "its start, CLOCK_BOOTTIME", "ns"),
        text("server_comm", 16, "its command name"),
        i64("requests", "that were answered, at least"),
        i64(
            "sum_ns",
            "the times of those of a millisecond or longer, from when the server read the request to when the answer"
            " was read",
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
        text("library_version", 32, "its version"),
        i64("duration_ns", "wall time from first call to the end", "ns"),
        i64("in_call_ns", "time inside calls", "ns"),
        i64("calls", "calls it took"),
        enum("result", "ok failed abandoned", "how it ended"),
        text("error", 64, "why it failed", "error.type"),
        i64(
            "verify_result",
            "what checking the peer's certificate gave, X509_V_ERR number (0 good), whether or not the handshake"
            " passed; null: no certificate",
        ),
        text("tls_version", 8, "negotiated version, for example 1.3", "tls.protocol.version"),
        measure="duration_ns",
    ),
    table(
        "dns_lookup",
        "a name that was looked up; an answer, or a wait without one, where it was seen at a socket only",
        *PROC,
        peer("the name server that was asked last"),
        text(
            "name",
            128,
            "the name, bytes that are not ASCII's printable ones as \\027; too long: cut, with a hash of the whole;"
            " empty: not known",
            "dns.question.name",
        ),
        text("qtype", 8, "the type that was asked for: A AAAA A+AAAA ..."),
        i64("duration_ns", "until it was known, or given up", "ns"),
        i64("tries", "questions until then, where they were seen: one each time that nobody answered, and the last"),
        enum(
            "result",
            "ok nxdomain nodata servfail refused timeout error",
            "how it ended; nodata: the name has no such address",
        ),
        i64("rcode", "of the last answer (RFC 1035 4.1.1), where it was seen"),
        i64("code", "what getaddrinfo returned, EAI_*"),
        enum(
            "source",
            "getaddrinfo socket go",
            "how it was seen: the C library's call, an answer at a thread's own socket, or Go's own resolver",
        ),
        i64("uid", "the process's real user"),
        measure="duration_ns",
    ),
)
