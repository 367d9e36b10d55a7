"""Clocks, who sets them, and who is told."""

from __future__ import annotations

from agent.columns import boolean, enum, i64, text
from agent.tables.shared import PROC, table

# fmt: off
DECLARED = (
    table("clock_change", "something that moved or tried to move a clock", *PROC,
          enum("kind", "step slew frequency leap tai suspend pause restore clocksource unsync", "what happened"),
          text("via", 16, "the call: clock_settime settimeofday adjtimex clock_adjtime, or none"),
          text("modes", 64, "adjtimex modes, decoded; status flags that changed (+UNSYNC -INS); the clocksources; time stolen in a pause; unwatched=S: found by an agent that started, S seconds after the last one looked"), i64("requested_ns", "what was asked: a target time for set calls, else an offset", "ns"),
          i64("size_ns", "how far REALTIME moved against MONOTONIC; of a suspend or a pause: how long", "ns"), i64("err_ns", "error bound of size_ns", "ns"),
          i64("real_mono_before_ns", "REALTIME - MONOTONIC before", "ns"), i64("real_mono_after_ns", "and after", "ns"),
          i64("freq_before_ppb", "frequency correction before", "ppb"), i64("freq_after_ppb", "and after", "ppb"),
          i64("ret", "return value; negative errno when it failed"),
          enum("direction", "forward backward", "which way REALTIME jumped; null where it did not", "direction"),
          i64("unwatched_ns", "for how long nobody had looked when it was found, by an agent that started; null too in rows that an earlier version sealed", "ns"), measure="size_ns"),
    table("clock_offset", "a sample, or the start of a segment, of the offset history",
          i64("real_mono_ns", "REALTIME - MONOTONIC", "ns"), i64("boot_mono_ns", "BOOTTIME - MONOTONIC", "ns"),
          i64("mono_raw_ns", "MONOTONIC - MONOTONIC_RAW", "ns"), i64("tai_mono_ns", "TAI - MONOTONIC", "ns"),
          i64("err_ns", "error bound of these", "ns"), i64("freq_ppb", "adjtimex frequency", "ppb"),
          i64("tick_us", "adjtimex tick", "us"), i64("status", "adjtimex status bits"),
          i64("maxerror_us", "adjtimex maxerror", "us"), i64("tai_s", "TAI - UTC as the kernel knows it", "s"),
          boolean("cut", "true where a segment starts: an adjustment was seen at t_ns"),
          i64("ntp_offset_ns", "what adjtimex still has to slew away: the time daemon's last offset", "ns"), i64("esterror_us", "adjtimex esterror", "us"),
          i64("leap_indicator", "as in NTP: 0 none, 1 a second will be inserted, 2 one will be deleted, 3 not synchronised"),
          boolean("synchronised", "the kernel's clock is disciplined (not STA_UNSYNC)"), measure="real_mono_ns"),
    table("clock_daemon", "what a time daemon, a time server, or a comparison of two of them says of the wall clock",
          text("daemon", 16, "who says it: chrony ntpd timesyncd sntp ..."),
          enum("kind", "system source check", "the daemon itself, one of its sources (or a server asked past it), a comparison"),
          enum("state", "synchronised unsynchronised silent refused error agree disagree selected combined excluded falseticker unstable unusable",
               "in what state it is; of a source, what the daemon makes of it"),
          text("source", 64, "the source or server; of a comparison, with what"),
          i64("offset_ns", "the source's time minus the wall clock (positive: our clock is slow); of a comparison, the difference", "ns"),
          i64("distance_ns", "bound of offset_ns: root distance, or the sum of both bounds", "ns"),
          i64("root_delay_ns", "round trip to the reference clock", "ns"), i64("root_dispersion_ns", "error added on the way from it", "ns"),
          i64("delay_ns", "round trip to the server", "ns"), i64("stratum", "hops to the reference clock"),
          enum("leap", "none insert delete unsynchronised", "leap second announced"), text("ref_id", 16, "reference id"),
          i64("last_update_ns", "last update or measurement, CLOCK_BOOTTIME", "ns"), i64("update_interval_ns", "between the last two updates", "ns"),
          i64("last_offset_ns", "offset at the last update, as offset_ns", "ns"), i64("rms_offset_ns", "its long-term average, or jitter", "ns"),
          i64("freq_ppb", "correction the oscillator is believed to need (positive: it is slow)", "ppb"),
          i64("residual_freq_ppb", "part of it still to come", "ppb"), i64("skew_ppb", "error bound of freq_ppb", "ppb"),
          i64("reach", "last eight polls, a bit each"), i64("poll_s", "polling interval", "s"),
          i64("real_raw_ns", "REALTIME - MONOTONIC_RAW at t_ns", "ns"), text("reason", 160, "why that state"), measure="offset_ns"),
    table("notice_status", "the jump notices on one channel so far, at each change", enum("channel", "socket exec webhook redis", "the notice socket, or a hook"),
          i64("subscribers", "programs connected now"), i64("sent", "notices sent, one a subscriber; of a hook: delivered"),
          i64("acknowledged", "notices acknowledged: the limiter has re-anchored"), i64("pending", "sent to a subscriber now connected, not acknowledged yet"),
          i64("failed", "deliveries that failed"), i64("dropped", "subscribers dropped (slow, too many, noisy); of a hook: notices left out"),
          i64("malformed", "lines of subscribers that are no acknowledgement"), text("reason", 128, "the last failure"), measure="pending"),
)
# fmt: on
