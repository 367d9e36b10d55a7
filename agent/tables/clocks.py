"""Clocks, the processes that set them, and the programs that are notified."""

from __future__ import annotations

from agent.columns import boolean, enum, i64, text
from agent.tables.shared import PROC, table

DECLARED = (
    table(
        "clock_change",
        "a change of a clock, or a refused attempt",
        *PROC,
        enum("kind", "step slew frequency leap tai suspend pause restore clocksource unsync", "what happened"),
        text("via", 16, "the call: clock_settime settimeofday adjtimex clock_adjtime, or none"),
        text(
            "modes",
            64,
            "details by kind: adjtimex modes, decoded; changed status flags (+UNSYNC -INS); the clock"
            " sources; stolen time of a pause; unwatched=S: the agent found the change when it started, S seconds"
            " after the last reading of the clock",
        ),
        i64("requested_ns", "requested value. Calls that set a time: ns since 1970; other calls: an offset", "ns"),
        i64("size_ns", "change of REALTIME - MONOTONIC (negative: back); suspend, pause: duration", "ns"),
        i64("err_ns", "error bound of size_ns", "ns"),
        i64("real_mono_before_ns", "REALTIME - MONOTONIC before the change", "ns"),
        i64("real_mono_after_ns", "the same value after the change", "ns"),
        i64("freq_before_ppb", "frequency correction before the change", "ppb"),
        i64("freq_after_ppb", "the same value after the change", "ppb"),
        i64("ret", "return value; negative errno when it failed"),
        enum("direction", "forward backward", "direction of the jump of REALTIME; null: no jump", "direction"),
        i64(
            "unwatched_ns",
            "if the agent found the change when it started: time since the last reading of the clock",
            "ns",
        ),
        measure="size_ns",
    ),
    table(
        "clock_offset",
        "a sample, or the start of a segment, of the offset history",
        i64("real_mono_ns", "REALTIME - MONOTONIC", "ns"),
        i64("boot_mono_ns", "BOOTTIME - MONOTONIC", "ns"),
        i64("mono_raw_ns", "MONOTONIC - MONOTONIC_RAW", "ns"),
        i64("tai_mono_ns", "TAI - MONOTONIC", "ns"),
        i64("err_ns", "error bound of these four offsets", "ns"),
        i64("freq_ppb", "adjtimex frequency", "ppb"),
        i64("tick_us", "adjtimex tick", "us"),
        i64("status", "adjtimex status bits"),
        i64("maxerror_us", "adjtimex maxerror", "us"),
        i64("tai_s", "TAI - UTC in the kernel; 0 if no daemon set it", "s"),
        boolean("cut", "true where a segment starts: an adjustment was seen at t_ns"),
        i64("ntp_offset_ns", "rest of the slew that adjtimex was asked for: the time daemon's last offset", "ns"),
        i64("esterror_us", "adjtimex esterror", "us"),
        i64(
            "leap_indicator",
            "as in NTP: 0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised",
        ),
        boolean(
            "synchronised",
            "the clock is synchronised, by the kernel's flag (not STA_UNSYNC) or by a time daemon of this host",
        ),
        measure="real_mono_ns",
    ),
    table(
        "clock_daemon",
        "a report about the wall clock by a time daemon or time server, or a comparison of two of them",
        text("daemon", 16, "the reporting daemon: chrony ntpd timesyncd sntp ..."),
        enum(
            "kind",
            "system source check",
            "system: the daemon; source: one of its sources, or a server that tickscope queries itself;"
            " check: a comparison",
        ),
        enum(
            "state",
            "synchronised unsynchronised silent refused error agree disagree selected combined excluded falseticker"
            " unstable unusable",
            "state of the daemon; of a source, how the daemon rates it",
        ),
        text("source", 64, "the source or server; check: the other side of the comparison"),
        i64(
            "offset_ns",
            "the source's time minus the wall clock (positive: the wall clock is behind); check: the difference",
            "ns",
        ),
        i64("distance_ns", "error bound of offset_ns: root distance; check: the sum of both bounds", "ns"),
        i64("root_delay_ns", "round-trip time to the reference clock", "ns"),
        i64("root_dispersion_ns", "error that accumulates between the reference clock and this host", "ns"),
        i64("delay_ns", "round-trip time to the server", "ns"),
        i64("stratum", "hops to the reference clock"),
        enum("leap", "none insert delete unsynchronised", "leap second announced"),
        text("ref_id", 16, "reference id"),
        i64("last_update_ns", "last update or measurement, CLOCK_BOOTTIME", "ns"),
        i64("update_interval_ns", "time between the last two updates", "ns"),
        i64("last_offset_ns", "offset at the last update, as offset_ns", "ns"),
        i64("rms_offset_ns", "long-term average of the offsets, or the jitter", "ns"),
        i64(
            "freq_ppb",
            "frequency correction that the oscillator needs, by the daemon's estimate (positive: it is slow)",
            "ppb",
        ),
        i64("residual_freq_ppb", "part of freq_ppb that is not applied yet", "ppb"),
        i64("skew_ppb", "error bound of freq_ppb", "ppb"),
        i64("reach", "result of the last eight polls, one bit each: 255 if all were answered"),
        i64("poll_s", "polling interval", "s"),
        i64("real_raw_ns", "REALTIME - MONOTONIC_RAW at t_ns", "ns"),
        text("reason", 160, "reason of the state"),
        measure="offset_ns",
    ),
    table(
        "timer_effect",
        "the effect of a jump of this host's wall clock on one timer of a polled server, or on several timers of one"
        " queue (docs/timers.md). Jumps of less than 1 ms have no rows",
        text("system", 16, "system of the server, as in queue_lag", "messaging.system"),
        text(
            "cluster",
            64,
            "the server, by its name in the settings, with its address if several have that name; queue_lag may have"
            " the cluster's own name",
        ),
        i64("jump_t_ns", "time of the jump, CLOCK_BOOTTIME", "ns"),
        i64("size_ns", "size of the jump (negative: back)", "ns"),
        text("destination", 64, "the queue, or the pattern of keys in the settings", "messaging.destination.name"),
        text(
            "object",
            64,
            "the message (Celery: delivery tag), key, lease (etcd: id and a key) or consumer; Kafka: group, partition"
            " and source of the record times; id: UUIDv7 or Snowflake; empty: several objects",
        ),
        enum(
            "kind",
            "redelivery lease lock ttl dedup retention eta id",
            "what the timer controls; id: no timer, but ids that contain the time",
        ),
        i64("timers", "number of timers in this row; the times are those of the first to fire"),
        enum(
            "clock",
            "wall monotonic both checked",
            "the clock of the timer. both: fires once it is due on both clocks; checked: the wall clock, read when a"
            " monotonic timer of the server fires; null: not measured for this version",
        ),
        i64("due_wall_ns", "due time on the wall clock, ns since 1970", "ns"),
        i64("was_due_ns", "when it would have fired without the jump, CLOCK_BOOTTIME", "ns"),
        i64(
            "is_due_ns",
            "when it fires after the jump, CLOCK_BOOTTIME; null for clock checked and a jump forward: it fires between"
            " the jump and was_due_ns",
            "ns",
        ),
        i64("moved_ns", "is_due_ns - was_due_ns (negative: early, positive: late)", "ns"),
        boolean("immune", "the jump does not move it (RabbitMQ: moves it by at most 1 % of its duration)"),
        text("version", 16, "the server's version; empty: the server does not know it (Celery)"),
        text("consequence", 192, "effect of the jump; if clock or a time is null, also the reason"),
        i64("polled_ns", "time of the poll that found the timer, CLOCK_BOOTTIME", "ns"),
        measure="moved_ns",
    ),
    table(
        "notice_status",
        "the counters of the notices of clock jumps on one channel, since the agent started; a row at each change",
        enum("channel", "socket exec", "socket: notices.sock; exec: the hook command (notices.exec)"),
        i64("subscribers", "programs connected now"),
        i64("sent", "notices sent, counted once per subscriber; exec: runs of the command that succeeded"),
        i64("acknowledged", "notices that a program acknowledged: its limiters have adapted to the jump"),
        i64("pending", "notices that connected subscribers have not acknowledged yet"),
        i64("failed", "deliveries that failed"),
        i64(
            "dropped",
            "subscribers that were disconnected (slow, too many, or malformed); exec: notices that were skipped",
        ),
        i64("malformed", "lines from subscribers that are not acknowledgements"),
        text("reason", 128, "the last failure"),
        measure="pending",
    ),
)
