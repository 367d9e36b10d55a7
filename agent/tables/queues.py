"""Queues, of brokers and of the kernel."""

from __future__ import annotations

from agent.columns import boolean, enum, f64, i64, peer, text
from agent.tables.shared import INTERVAL, PROC, SOCK, table

DECLARED = (
    table(
        "queue_lag",
        "one queue at one poll",
        text("system", 16, "messaging system", "messaging.system"),
        text(
            "cluster",
            64,
            "the cluster, or the server's name in the settings. system, cluster, destination, partition"
            " and consumer_group identify a queue, whichever address answered",
        ),
        text("destination", 64, "stream, topic or queue", "messaging.destination.name"),
        text("partition", 16, "partition", "messaging.destination.partition.id"),
        text("consumer_group", 64, "consumer group", "messaging.consumer.group.name"),
        i64("lag_messages", "messages not yet delivered to a consumer"),
        f64("lag_s", "time that the consumers are behind: age of the first undelivered message", "s"),
        boolean("exact", "whether lag_messages is exact"),
        text("inexact_reason", 64, "what is not exact, and why"),
        f64("oldest_undelivered_s", "age of the oldest undelivered message", "s"),
        f64("oldest_pending_s", "age of the oldest unacknowledged message", "s"),
        i64("pending", "delivered, not acknowledged"),
        i64(
            "redelivered",
            "delivered more than once: of the oldest pending (Redis Streams: 100, Celery: 2,000), of all pending"
            " (NATS), or of the deliveries since the previous poll (RabbitMQ)",
        ),
        i64("consumers", "consumers"),
        f64("in_per_s", "messages that arrive", "1/s"),
        f64("out_per_s", "messages that are acknowledged", "1/s"),
        text("status", 16, "ok draining unknown lagging rewound stalled stopped gone down (docs/queues.md)"),
        text("reason", 128, "why that status"),
        enum(
            "failure",
            "no_answer refused unreachable closed login other unasked permission",
            "how the poll failed; unasked: tickscope's broker process was down; permission: commands were refused;"
            " null: the poll succeeded",
        ),
        i64(
            "poll_ns",
            "duration of the poll of this server (Kafka with several brokers: of its own answers); null: not known",
            "ns",
        ),
        peer("the server's ip:port"),
        text(
            "holder",
            64,
            "consumer that holds the oldest unacknowledged message (Kafka: to which the partition is assigned)",
        ),
        text(
            "idle_consumer",
            64,
            "consumer whose last request (before Redis 7.2: delivery) is longest ago, among those with one in the last"
            " minute",
        ),
        f64("idle_s", "time since the last request of idle_consumer", "s"),
        text(
            "server_role",
            16,
            "role of the server: primary, replica, or cut off (a replica without a connection to its primary); etcd:"
            " the leader is the primary",
        ),
        f64(
            "errors_per_s",
            "error replies by which the server refused service to any client (OOM, READONLY, LOADING, NOAUTH ...)",
            "1/s",
        ),
        text(
            "errors",
            64,
            "kinds and counts of these replies since the previous poll; MEMORY_ALARM and DISK_ALARM: RabbitMQ blocks"
            " publishers; NOSPACE and CORRUPT: etcd refuses writes",
        ),
        i64("memory_bytes", "memory used by the server", "bytes"),
        i64("memory_limit_bytes", "memory limit of the server", "bytes"),
        i64("clients", "clients of the server"),
        i64("clients_limit", "client limit of the server"),
        i64("clients_refused", "connections refused because of clients_limit, since the server started"),
        i64(
            "lag_at_least",
            "lower bound of the lag (upper: lag_messages). Null: lag_messages is exact, or no bound is known",
        ),
        i64("pending_deleted", "of the 100 oldest pending messages, those that no longer exist"),
        i64("held_idle", "pending messages of consumers without a request for 60 s"),
        text("idle_holders", 64, "the consumers counted in held_idle, each with its pending messages; most first"),
        i64("delayed", "messages that wait for a set time"),
        f64(
            "redelivery_s",
            "time until the first unacknowledged message is due for redelivery; negative: overdue",
            "s",
        ),
        f64("drains_in_s", "draining: time until lag_messages is 0 at the present rate", "s"),
        f64(
            "limit_in_s",
            "lagging, stalled or stopped: time until the server's memory is full or the oldest undelivered message is"
            " deleted, whichever is first, at the present rate; reason says which",
            "s",
        ),
        f64("forecast_err_s", "error bound of drains_in_s or limit_in_s, 95 % confidence", "s"),
        text("group_state", 16, "state of the consumer group (Kafka): stable rebalancing empty dead unknown"),
        i64("rebalances", "rebalances of the group since its first poll; several between two polls count once"),
        f64("lag_error_s", "error bound of lag_s; null if lag_s depends on another host's clock", "s"),
        enum(
            "lag_basis",
            "history log_append create",
            "source of lag_s. history: earlier polls; log_append, create: the time stamp of the first unread record, by"
            " the broker's or the producer's clock",
        ),
        f64("retention_left_s", "time until the first unread message may be deleted for its age (Kafka, NATS)", "s"),
        text(
            "workers",
            128,
            "consumers of the queue: name and pid as they report (Celery on Redis), or ip:port as the broker sees it"
            " (RabbitMQ with the management API); as many as fit, and the number of the others",
        ),
        text(
            "tasks",
            128,
            "names of the next tasks in the queue, each with its count; most first (Celery on Redis: of at most 10"
            " messages of each priority)",
        ),
        i64(
            "removed",
            "messages removed before they were read, since the agent began to watch the queue (Redis Streams, Kafka,"
            " NATS)",
        ),
        i64("lag_bytes", "lag of a log without messages (PostgreSQL's WAL)", "bytes"),
        text(
            "priorities",
            64,
            "lag_messages by priority, if another than 0 has messages: `0: 5, 3: 3`; the number is that of the Redis"
            " list, and 0 is taken first (Celery on Redis)",
        ),
        f64(
            "consumer_capacity",
            "fraction of time in which the consumers could take a message at once; below 1: they are slow, or their"
            " prefetch is too small (RabbitMQ: a moving average, up to 10 s old)",
        ),
        measure="lag_messages",
    ),
    table(
        "message_order",
        "the messages in an interval that a consumer reported, or that were read from a queue: how many were duplicates"
        " or out of order (docs/queues-order.md)",
        *PROC,
        text("system", 16, "messaging system", "messaging.system"),
        text("cluster", 64, "as in queue_lag; empty: not reported"),
        text("destination", 64, "stream, topic or queue", "messaging.destination.name"),
        text("partition", 16, "partition", "messaging.destination.partition.id"),
        text("consumer_group", 64, "consumer group", "messaging.consumer.group.name"),
        enum(
            "source",
            "consumer sample",
            "consumer: reported by the consuming process; sample: read from the queue, in the order of production",
        ),
        INTERVAL,
        i64("messages", "checked messages"),
        i64("duplicates", "messages whose id was seen before, among the remembered ids"),
        i64(
            "out_of_order",
            "other messages whose sequence number is below an earlier one of the same producer and consumer (RFC 4737)",
        ),
        i64("unread", "sample: messages that were skipped because of the limits of a poll"),
        text("duplicate_id", 64, "id of the first duplicate"),
        f64("repeated_s", "time from the first arrival of duplicate_id to the second", "s"),
        i64("first_pid", "process that got duplicate_id first"),
        i64("first_proc_start_ns", "start of that process, CLOCK_BOOTTIME", "ns"),
        text("first_comm", 16, "command name of that process"),
        text("out_of_order_id", 64, "id of the message that was furthest out of order"),
        i64("behind", "difference between the highest sequence number before and that of out_of_order_id"),
        measure="duplicates",
    ),
    table(
        "socket_queue",
        "one kernel queue at one poll. Rows exist for the 256 listeners with the longest queues and"
        " for the 32 connections with the most unread or unsent data; at the agent's start also for those of clients"
        " that are older",
        *PROC,
        *SOCK,
        enum("kind", "accept connection qdisc", "which queue"),
        i64("queue", "length. accept: connections; connection: bytes (the larger of both queues); qdisc: packets"),
        i64("limit", "accept: maximum length, connections"),
        i64(
            "overflows", "accept: connects that met a full accept queue since the host started, all listeners together"
        ),
        i64("recv_q_bytes", "receive queue", "bytes"),
        i64("send_q_bytes", "send queue", "bytes"),
        text("device", 16, "network device"),
        i64("acked_bytes", "connection: bytes acknowledged by the peer since the connect", "bytes"),
        i64(
            "shut_ns",
            "connection: time since the connect in which data waited for the peer's receive window to open",
            "ns",
        ),
        i64("drops", "connections (accept) or packets (qdisc) that this queue dropped"),
        measure="queue",
    ),
)
