"""A span, a log record or a span's event with rate-limiting attributes, as columns of ``limiter_decision``. Pure.

No convention of OpenTelemetry's covers rate limiting but ASP.NET Core's (``aspnetcore.rate_limiting.*``). Taken are
those, what tickscope itself exports, and ``NAME.*`` for each NAME of ``NAMES`` that instrumentations use, which
docs/limiters-reference.md lists. What has no result is no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from agent.columns import fitted
from agent.limiters.decision import FLOATS, TABLE, Malformed
from agent.limiters.decision import NAMES as TEXTS
from agent.limiters.naming import Names

NAMES = ("rate_limiting", "ratelimit", "rate_limit", "aspnetcore.rate_limiting")
#: What may follow such a name: column (or, of those in capitals, what it is made of), and what one unit is in the
#: column's.
_ENDINGS: dict[str, tuple[str, float]] = {
    **{name: (name.upper(), 1) for name in ("result", "allowed", "limited", "key")},
    "limiter.id": ("ID", 1),
    **dict.fromkeys(("limiter.name", "policy", "name"), ("NAME", 1)),
    "limit": ("burst", 1),
    **{name: (name, 1) for name in ("cost", "limit_per_s", "burst", "remaining")},
    "permits": ("cost", 1),
    **{
        f"{name}{unit}": (f"{name}_ns", factor)
        for name in ("window", "wait", "duration")
        for unit, factor in (("", 1e9), ("_ms", 1e6), ("_ns", 1))
    },
}
_INTEGERS = ("window_ns", "wait_ns", "duration_ns", "program_wall_ns")
#: Attribute -> (column or what it is made of, unit). Of two that mean the same, the first one here counts.
MEANING: dict[str, tuple[str, float]] = {
    **{f"tickscope.{name}": (name, 1.0) for name in (*FLOATS, *_INTEGERS, *TEXTS, "sample_rate", "unlimited")},
    "tickscope.source": ("SEEN", 1),
    **{f"{name}.{ending}": meaning for name in NAMES for ending, meaning in _ENDINGS.items()},
}
#: Least and most of columns that are not just at least 0. Counts are divided by the sample rate.
_RANGES = {"remaining": (-(2.0**63), 2.0**63 - 1024), "sample_rate": (1e-6, 1.0)}
_RANK = {name: rank for rank, name in enumerate(MEANING)}
_WORDS = {
    "allowed": "allowed acquired ok accepted permitted passed pass success under_limit",
    "refused": (
        "refused rejected denied limited throttled blocked dropped over_limit exceeded endpoint_limiter global_limiter"
    ),
    "delayed": "delayed queued waited",
    "cancelled": "cancelled canceled request_canceled",
    "error": "error failed failure",
}
_RESULTS = {word: TABLE.by_name["result"].code(result) for result, words in _WORDS.items() for word in words.split()}
_SOURCES = frozenset(TABLE.by_name["source"].names)
_SOURCE = TABLE.by_name["source"].code("otlp")
#: How OpenTelemetry SDKs name a service without a name of its own.
_UNNAMED = "unknown_service"
Value = str | int | float | bool


class Record(NamedTuple):
    """What may be a decision. attributes: those of ``MEANING`` only. what: span, log or event. name: of the span;
    scope: the instrumentation's name and version. at_ns: Unix time, 0 unknown; duration_ns: of a span that is the
    decision, -1 of others. trace_id, span_id: hexadecimal digits, empty where there are none. boot_id: of the host,
    where the resource tells it.
    """

    what: str
    attributes: Mapping[str, Value]
    at_ns: int
    duration_ns: int = -1
    trace_id: bytes = b""
    span_id: bytes = b""
    name: str = ""
    scope: tuple[str, str] = ("", "")
    service: str = ""
    boot_id: str = ""


class Mapper:
    """key: what a key is stored as; names: what limiters are called; boot_id: of this host."""

    def __init__(self, key: Callable[[str], bytes], names: Names, boot_id: str) -> None:
        self._key, self._names, self._boot_id = key, names, boot_id

    def decision(self, record: Record) -> dict[str, object] | None:
        """Columns, of which ``t_ns`` is Unix time; None for what is no decision, or has come from here. Raises
        Malformed.
        """
        given = record.attributes
        found: dict[str, object] = {}
        for name in sorted(given, key=_RANK.__getitem__) if len(given) > 1 else given:
            column, unit = MEANING[name]
            if column not in found:
                found[column] = given[name] if column.isupper() else _value(name, column, given[name], unit)
        result = _result(found)
        if result is None or self._from_here(found, record):
            return None
        if not 0 <= record.at_ns < 1 << 63:
            raise Malformed("its time is none that there is")
        values = {name: value for name, value in found.items() if not name.isupper()}
        values |= {"result": result, "limiter_id": self._id(found, record), "source": _SOURCE, "t_ns": record.at_ns}
        if (key := found.get("KEY")) is not None:
            text = _text("key", key)
            values["key"] = text.encode("utf-8", "replace")[:64] if "SEEN" in found else self._key(text)
        if values.get("unlimited"):
            values.pop("limit_per_s", None)
        if "library" not in values and record.scope[0]:
            values["library"] = fitted(record.scope[0].encode("utf-8", "replace"), TEXTS["library"])
            values["library_version"] = fitted(record.scope[1].encode("utf-8", "replace"), TEXTS["library_version"])
        if record.duration_ns >= 0:
            values.setdefault("duration_ns", record.duration_ns)
        if record.trace_id:
            values["trace_id"], values["span_id"] = record.trace_id, record.span_id
        return values

    def _id(self, found: Mapping[str, object], record: Record) -> bytes:
        if "ID" in found:
            name = _text("limiter.id", found["ID"])
        else:
            name = (
                _text("limiter.name", found["NAME"]) if "NAME" in found else (record.name or record.scope[0] or "otlp")
            )
            if record.service and not record.service.startswith(_UNNAMED):
                name = f"{record.service}:{name}"
        if not name:
            raise Malformed("the limiter's name is empty")
        return self._names.called(name)

    def _from_here(self, found: Mapping[str, object], record: Record) -> bool:
        """Whether an agent of this host exported it, or one that had it by OTLP: it would come round again."""
        return found.get("SEEN") == "otlp" or (found.get("SEEN") in _SOURCES and record.boot_id == self._boot_id)


def _result(found: Mapping[str, object]) -> int | None:
    if "RESULT" in found:
        word = found["RESULT"]
        code = _RESULTS.get(word.lower()) if isinstance(word, str) else None
        if code is None:
            raise Malformed(f"result {str(word)[:32]!r} is not known: allowed, refused, delayed, cancelled or error")
        return code
    for name, means in (("ALLOWED", True), ("LIMITED", False)):
        if name in found:
            if not isinstance(found[name], bool):
                raise Malformed(f"{name.lower()} must be true or false")
            return _RESULTS["allowed" if found[name] is means else "refused"]
    return None


def _value(name: str, column: str, value: Value, unit: float) -> object:
    if column == "unlimited":
        return 1 if value is True else 0
    if column in TEXTS:
        return fitted(_text(name, value).encode("utf-8", "replace"), TEXTS[column])
    try:
        number = float("nan") if isinstance(value, bool) else float(value) * unit
    except (ValueError, OverflowError):
        number = float("nan")
    least, most = _RANGES.get(column, (0, 2.0**63 - 1024))
    if not least <= number <= most:
        raise Malformed(f"{name} is not a number from {least:g} to {most:g}")
    return int(value) if unit == 1 and isinstance(value, int) else int(number) if column in _INTEGERS else number


def _text(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise Malformed(f"{name} must be a text")
    return str(value)
