"""Settings of the store: directory, sizes and ages."""

from __future__ import annotations

from dataclasses import dataclass

from agent.common.settings import directory, number, setting, whole


@dataclass(frozen=True)
class StoreSettings:
    store: str = setting(
        "/var/lib/tickscope", directory(4095), "directory of the store", variable="TICKSCOPE_STORE", flag=True
    )
    max_bytes: int = setting(
        1 << 30,
        whole(1 << 20, 1 << 50),
        "maximum size of the store in bytes; findings older than the other rows take up to 16 MiB more",
    )
    max_age_days: float = setting(
        7.0,
        number(0.01, 36500),
        "maximum age of rows in days (findings: 400), by CLOCK_BOOTTIME summed over boots: a wrong wall clock removes"
        " nothing",
    )
