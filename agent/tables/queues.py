"""Queues, of brokers and of the kernel."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, i64, peer, text
from agent.tables.shared import PROC, SOCK, table

DECLARED = (
    table(
        "queue_lag",
        "one queue at one poll",
        text("system", 16, "messaging system", "messaging.system"),
        text(
            "cluster",
            64,
            "the cluster, or the server as the settings name it: with system, destination, partition and consumer_group"
            " it identifies the queue, whichever address answered",
        ),
        text("destination", 64, "stream, topic or queue", "messaging.destination.name"),
        text("partition", 16, "partition", "messaging.destination.partition.id"),
        text("consumer_group", 64, "consumer group", "messaging.consumer.group.name"),
        i64("lag_messages", "messages not yet delivered"),
        f64("lag_s", "age of the lag in time", "s"),
        boolean("exact", "lag_messages is exact"),
        text("inexact_reason", 64, "why not"),
        f64("oldest_undelivered_s", "age of the oldest undelivered message", "s"),
        f64("oldest_pending_s", "age of the oldest unacknowledged message", "s"),
        i64("pending", "delivered, not acknowledged"),
        i64("redelivered", "delivered more than once, of the 100 oldest pending"),
        i64("consumers", "consumers"),
        f64("in_per_s", "arrivals", "1/s"),
        f64("out_per_s", "acknowledgements", "1/s"),
        text("status", 16, "ok lagging stuck down"),
        text("reason", 128, "why that status"),
        enum(
            "failure",
            "no_answer refused unreachable closed login other unasked",
            "how a poll failed; unasked: tickscope's own process for brokers was not there; null where it did not",
        ),
        i64("poll_ns", "time the poll took", "ns"),
        peer("the server's ip:port"),
        text("holder", 64, "consumer that holds the oldest unacknowledged message"),
        text(
            "idle_consumer",
            64,
            "consumer that has asked for nothing, or got nothing (Redis before 7.2), for longest, of those that did"
            " within a minute",
        ),
        f64("idle_s", "for how long", "s"),
        text(
            "server_role", 16, "of the server: primary, replica, or cut off (a replica that does not reach its primary)"
        ),
        f64(
            "errors_per_s",
            "error replies of the server that refuse service to others (OOM, READONLY, LOADING, NOAUTH ...)",
            "1/s",
        ),
        text("errors", 64, "their kinds and numbers since the poll before"),
        i64("memory_bytes", "memory that the server has used", "bytes"),
        i64("memory_limit_bytes", "as much as it may use", "bytes"),
        i64("clients", "clients of the server"),
        i64("clients_limit", "as many as it takes"),
        i64("clients_refused", "connections that it refused for that limit since it started"),
        measure="lag_messages",
    ),
    table(
        "socket_queue",
        "one kernel queue at one poll: of up to 256 listeners, those with most waiting, and the 32 connections with"
        " most unread or unsent",
        *PROC,
        *SOCK,
        enum("kind", "accept connection qdisc", "which queue"),
        i64("queue", "length: connections, bytes or packets"),
        i64("limit", "its limit"),
        i64("overflows", "full accept queues met since the host started, by all listeners"),
        i64("recv_q_bytes", "receive queue", "bytes"),
        i64("send_q_bytes", "send queue", "bytes"),
        text("device", 16, "network device"),
        i64("acked_bytes", "connection: what the other end has taken since it began", "bytes"),
        i64(
            "shut_ns",
            "connection: for how long in all what was written waited for the other end's window to open",
            "ns",
        ),
        i64("drops", "connections (accept) or packets (qdisc) that this queue dropped"),
        measure="queue",
    ),
)
