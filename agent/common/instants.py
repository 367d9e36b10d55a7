"""Wall times as text."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(wall_ns: int, digits: int = 6, utc: bool = False) -> str:
    """ISO 8601 with ``digits`` decimals of a second, rounded down; local unless ``utc``, always with its zone.
    ``--since`` and ``clock convert`` accept it.
    """
    seconds, rest = divmod(wall_ns, 10**9)
    at = datetime.fromtimestamp(seconds, UTC).astimezone(UTC if utc else None)
    zone = f"{at:%z}"
    below = f".{rest // 10 ** (9 - digits):0{digits}d}" if digits else ""
    return f"{at:%Y-%m-%dT%H:%M:%S}{below}{'Z' if zone == '+0000' else f'{zone[:3]}:{zone[3:]}'}"
