"""Settings of the probes: which families run, and how much of system call time is measured."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.common.settings import flag, number, one_of, one_or_list, parse_texts, setting, value


def _known() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).parents[1] / "probes").glob("[a-z]*.py"))


def _families(given: object) -> tuple[str, ...]:
    known = _known()
    found = parse_texts(given, "a list of probe families")
    if wrong := set(found) - set(known):
        raise ValueError(f"there is no probe family {min(wrong)}; known: {', '.join(known)}")
    return found


@dataclass(frozen=True)
class ProbeSettings:
    syscalls: str = setting(
        "sampled",
        one_of("blocked", "sampled", "full", "off"),
        "system calls that are timed (blocked time only, all calls in sampling windows, all calls, none)",
        flag=True,
    )
    syscalls_window_ms: float = setting(
        20.0, number(1, 500), "with `sampled`: milliseconds of each second in which all calls are timed"
    )
    slow_syscall_ms: float = setting(
        10.0, number(0.1, 60_000), "a call that is blocked for longer, in ms, is a row of slow_syscall"
    )
    investigate: str = setting(
        "auto", one_of("auto", "off"), "profile processes with a symptom for some seconds", flag=True
    )
    without: tuple[str, ...] = setting(
        (),
        value(_families, "a list of probe families", schema=lambda: one_or_list({"enum": _known()}, 256)),
        "probe families to leave out",
    )
    unix_sockets: bool = setting(
        False,
        flag(),
        "observe requests over Unix stream sockets: client, server and response times (cost: docs/diagnosis.md)",
    )
