"""``tickscope status``: asks the running agent, and reads from /proc what the agent itself cannot."""

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

#: What people are told of the clock here; `tickscope clock` tells the rest.
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
_MOST = 3  # rules that people are told the cost of; JSON has all


def run_dir() -> str:
    return os.environ.get("TICKSCOPE_RUN_DIR") or ServiceSettings.run_dir


def memory_of(process: dict[str, Any]) -> dict[str, Any]:
    """Adds uid, effective capabilities, no_new_privs and proportional memory; null where the asker may not read
    them.
    """
    pid = process["pid"]
    facts: dict[str, Any] = {"uid": None, "cap_eff": None, "no_new_privs": None, "pss_bytes": None}
    with contextlib.suppress(OSError, KeyError, StopIteration):  # what the asker may not read stays unknown
        with open(f"/proc/{pid}/status", errors="replace") as status:
            lines = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        facts["uid"] = int(lines["Uid"].split()[1])
        facts["cap_eff"] = lines["CapEff"].strip()
        facts["no_new_privs"] = lines["NoNewPrivs"].strip() == "1"
        with open(f"/proc/{pid}/smaps_rollup", errors="replace") as rollup:
            facts["pss_bytes"] = next(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))
    return {**process, **facts}


def document(wait_s: float = 0.0) -> dict[str, Any]:
    """The whole document. Raises AgentError (exit code 4) where no agent answers within ``wait_s``."""
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
    """What all rules and watches cost since the start, and the few that cost most; empty where none was asked yet."""
    ran = sorted((rule for rule in rules if rule["run_ns"]), key=lambda rule: -rule["run_ns"])
    if not ran:
        return ""
    each = (f"{rule['rule']} {rule['run_ns'] / 1e9:.2f} s in {rule['runs']}" for rule in ran[:_MOST])
    total_s, calls = sum(rule["run_ns"] for rule in ran) / 1e9, sum(rule["runs"] for rule in ran)
    return f"{total_s:.2f} s in {calls} calls; most expensive: {', '.join(each)}"


def profiles(profile_state: dict[str, Any]) -> str:
    """Whether processes are looked at closer now, and what that has taken so far."""
    if not profile_state:
        return "off; --investigate auto turns it on"
    now = profile_state["running"]
    doing = (
        f"now at pid {', '.join(map(str, now['pids']))} ({now['symptom']}): {' '.join(now['looked'])}"
        if now
        else "none now"
    )
    refused = "".join(f"; {n} left out: {why}" for why, n in profile_state["refused"].items())
    off = "" if profile_state["on"] else "turned off; "
    return f"{off}{doing}; {profile_state['looks']} so far, {profile_state['spent_s']:.1f} s{refused}"


def _human(d: dict[str, Any]) -> None:
    from agent.cli.cells import cell
    from agent.service.unevaluated import NAME as UNEVALUATED
    from agent.service.unevaluated import REASONS

    output.echo(
        f"agent pid {d['pid']}, up {d['uptime_s']:.0f} s, ready after {d['ready_s']:.2f} s, {d['cpu_s']:.1f} s of"
        " processor time"
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
    for row_ in d["programs"]:
        output.echo(f"  {row_['probe']:<12} {row_['state']}: {row_['reason']}")
        if row_["remedy"]:
            output.echo(f"  {'':<12} try: {row_['remedy']}")
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
    for row_ in d["time_daemons"]:
        of = f" of {row_['source']}" if row_["source"] else ""
        offset = (
            ""
            if row_["offset_ns"] is None
            else f", offset {cell('offset_ns', row_['offset_ns'])}, bound {cell('distance_ns', row_['distance_ns'])}"
        )
        output.echo(
            f"{row_['daemon']}  {row_['state']}{of}{offset}" + (f": {row_['reason']}" if row_["reason"] else "")
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
            output.echo(f"bounds hit by {name}  " + "; ".join(f"{count} {words}" for words, count in hit.items()))
    left_out = [
        f"{d['correlator_dropped'][reason]} {words}"
        for reason, words in REASONS.items()
        if d["correlator_dropped"][reason]
    ]
    output.echo("not judged for findings  " + ("; ".join(left_out) or "nothing"))
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
