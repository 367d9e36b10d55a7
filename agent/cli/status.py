"""``tickscope status``: queries the running agent, and reads from /proc what the agent cannot."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from typing import Any

import click

from agent.cli import options, output
from agent.config import ServiceSettings
from agent.errors import AgentError
from agent.service.control import ask

#: Members of the clock's state in the table format; `tickscope clock` shows the rest.
_CLOCK = (
    "synchronised",
    "ntp_offset_ns",
    "maxerror_us",
    "drift_ppb",
    "leap_indicator",
    "watch",
    "late_records",
    "subscribers_dropped",
)
_MOST = 3  # rules with their cost in the table format; JSON has all


def run_dir() -> str:
    return os.environ.get("TICKSCOPE_RUN_DIR") or ServiceSettings.run_dir


def memory_of(process: dict[str, Any]) -> dict[str, Any]:
    """Adds uid, effective capabilities, no_new_privs and proportional memory; null if the caller may not read them."""
    pid = process["pid"]
    facts: dict[str, Any] = {"uid": None, "cap_eff": None, "no_new_privs": None, "pss_bytes": None}
    with contextlib.suppress(OSError, KeyError, StopIteration):  # values that the caller may not read stay unknown
        with open(f"/proc/{pid}/status", errors="replace") as status:
            lines = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        facts["uid"] = int(lines["Uid"].split()[1])
        facts["cap_eff"] = lines["CapEff"].strip()
        facts["no_new_privs"] = lines["NoNewPrivs"].strip() == "1"
        with open(f"/proc/{pid}/smaps_rollup", errors="replace") as rollup:
            facts["pss_bytes"] = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    return {**process, **facts}


def document(wait_s: float = 0.0) -> dict[str, Any]:
    """The whole document. Raises AgentError (exit code 4) if no agent answers within ``wait_s``."""
    end = time.monotonic() + wait_s
    while True:
        try:
            answer: dict[str, Any] = ask(run_dir(), "status")
            break
        except AgentError:
            if time.monotonic() >= end:
                raise
            time.sleep(0.05)
    answer["processes"] = [memory_of(p) for p in answer["processes"]]
    return answer


@click.command("status")
@click.option(
    "--wait",
    "wait_s",
    type=options.Duration(zero=True),
    default=0.0,
    metavar="S",
    help="Wait up to S (20s, 1m; a number alone is seconds) for an agent with all probes attached.",
)
@options.common
def command(wait_s: float, fmt: str, store: str) -> None:
    """Show the state of the running agent: processes, probes, losses, clocks, store, export.

    With --wait, return as soon as all probes are attached.
    """
    answer = document(wait_s)
    output.emit(answer, fmt, lambda: _human(answer))


def most_expensive(rules: Sequence[dict[str, Any]]) -> str:
    """The cost of all rules and watches since the start, and of the most expensive ones; empty if none has run."""
    ran = sorted((rule for rule in rules if rule["run_ns"]), key=lambda rule: -rule["run_ns"])
    if not ran:
        return ""
    each = (f"{rule['rule']} {rule['run_ns'] / 1e9:.2f} s in {rule['runs']}" for rule in ran[:_MOST])
    total_s, calls = sum(rule["run_ns"] for rule in ran) / 1e9, sum(rule["runs"] for rule in ran)
    return f"{total_s:.2f} s in {calls} calls; most expensive: {', '.join(each)}"


def profiles(profile_state: dict[str, Any]) -> str:
    """Whether a profile runs now, and the cost of profiles so far."""
    if not profile_state:
        return "off; --investigate auto turns it on"
    now = profile_state["running"]
    doing = (
        f"now at pid {', '.join(map(str, now['pids']))} ({now['symptom']}): {' '.join(now['families'])}"
        if now
        else "none now"
    )
    refused = "".join(f"; {n} skipped: {why}" for why, n in profile_state["refused"].items())
    off = "" if profile_state["on"] else "turned off; "
    return f"{off}{doing}; {profile_state['profiles']} so far, {profile_state['spent_s']:.1f} s{refused}"


def _human(d: dict[str, Any]) -> None:
    from agent.cli.cells import cell
    from agent.service.unevaluated import NAME as UNEVALUATED
    from agent.service.unevaluated import REASONS

    output.echo(
        f"agent pid {d['pid']}, up {d['uptime_s']:.0f} s, ready after {d['ready_s']:.2f} s, {d['cpu_s']:.1f} s of"
        " CPU time"
    )
    for p in d["processes"]:
        memory = "?" if p["pss_bytes"] is None else f"{p['pss_bytes'] / 2**20:.1f} MiB"
        held = "?" if p["cap_eff"] is None else p["cap_eff"].lstrip("0") or "none"
        output.echo(f"  {p['role']:<12} pid {p['pid']:<7} uid {p['uid']}  capabilities {held}  memory {memory}")
    output.echo("probes")
    for p in d["probes"]:
        output.echo(f"  {p['probe']:<12} {p['state']}" + (f": {p['reason']}" if p["reason"] else ""))
        if p["remedy"]:
            output.echo(f"  {'':<12} try: {p['remedy']}")
    for entry in d["programs"]:
        output.echo(f"  {entry['probe']:<12} {entry['state']}: {entry['reason']}")
        if entry["remedy"]:
            output.echo(f"  {'':<12} try: {entry['remedy']}")
    if d["helper"] != "running":
        output.echo(f"helper  {d['helper']}")
    for failing in d["sources"]:
        times = f" ({failing['count']} times)" if (failing.get("count") or 0) > 1 else ""
        output.echo(
            f"  {failing['source']}: {failing['failure']}{times}"
            + ("; left out until the next start" if failing.get("left_out") else "")
        )
    for rule in d.get("rules", ()):
        if rule["failures"]:
            output.echo(
                f"  {rule['rule']}: {rule['failure']} ({rule['failures']} times)"
                + ("; left out until the next start" if rule["left_out"] else "")
            )
    if costs := most_expensive(d.get("rules", [])):
        output.echo(f"diagnosis  {costs}")
    output.echo(f"on-demand profile  {profiles(d.get('investigation') or {})}")
    for entry in d["time_daemons"]:
        of = f" of {entry['source']}" if entry["source"] else ""
        offset = (
            ""
            if entry["offset_ns"] is None
            else f", offset {cell('offset_ns', entry['offset_ns'])}, bound {cell('distance_ns', entry['distance_ns'])}"
        )
        output.echo(
            f"{entry['daemon']}  {entry['state']}{of}{offset}" + (f": {entry['reason']}" if entry["reason"] else "")
        )
    output.echo("rows  " + (", ".join(f"{n} {t}" for t, n in sorted(d["rows"].items())) or "none yet"))
    output.echo(
        "lost  "
        + (
            ", ".join(
                f"{'an unknown number' if x['count'] is None else x['count']} of {x['source']} ({x['stage']})"
                for x in d["loss"]
            )
            or "nothing"
        )
    )
    for name, hit in d.get("bounds", {}).items():
        if name != UNEVALUATED:
            output.echo(f"limits reached by {name}  " + "; ".join(f"{count} {words}" for words, count in hit.items()))
    left_out = [
        f"{d['correlator_dropped'][reason]} {words}"
        for reason, words in REASONS.items()
        if d["correlator_dropped"][reason]
    ]
    output.echo("not evaluated for findings  " + ("; ".join(left_out) or "nothing"))
    for name, part in (
        ("clock", {k: d["clock"].get(k) for k in _CLOCK}),
        ("store", d["store"]),
        *((k, v) for k, v in d["export"].items()),
    ):
        output.echo(
            f"{name}  "
            + ", ".join(
                f"{k.removesuffix('_ns').removesuffix('_us')} {cell(k, v)}"
                for k, v in part.items()
                if v not in (None, "") and k != "remedy"
            )
            + (f"; try: {part['remedy']}" if part.get("remedy") else "")
        )
