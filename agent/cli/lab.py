"""tickscope lab: injects faults into a workload of its own and scores the findings."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import options
from agent.errors import NO_ROWS, PRIVILEGE, USAGE, AgentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.lab.kind import Kind
    from agent.lab.plan import Group
    from agent.lab.truth import Truth

_out = click.option(
    "--out",
    "out",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="New directory for recording, truth and logs.",
)
_step = click.option(
    "--step-clock",
    is_flag=True,
    help="Allow kinds that step the wall clock, by at most 0.5 ms. Without it no clock is touched.",
)
_throwaway = click.option(
    "--throwaway-vm",
    is_flag=True,
    help=(
        "Allow kinds that move the wall clock by hours, change its rate, or need netem. Refused"
        " unless the machine was booted with tickscope.throwaway_vm on the kernel command line."
    ),
)


@click.group("lab", cls=options.VerbGroup, subcommand_metavar="VERB [ARGS]...")
def command() -> None:
    """Inject real faults, and compare the findings with them.

    The laboratory runs a workload (Redis, nginx, an upstream, DNS, limiters, streams, files, locks) in namespaces and
    cgroups of its own, and an agent of its own. It does not touch anything else on this host, and removes everything at
    the end.

    \b
    tickscope lab list
    sudo tickscope lab run broker_stopped network_delay --seed 7 --out trial
    tickscope lab score trial
    """


@command.command("list")
@options.output
def list_(fmt: str) -> None:
    """List the kinds of faults, their sizes from mild to hard, and the causes that are right answers."""
    from agent.cli.output import emit_rows
    from agent.lab.kind import kinds
    from agent.lab.report import catalogue

    emit_rows(catalogue(list(kinds().values())), fmt)


@command.command("run")
@click.argument("names", type=options.LabKind(), nargs=-1, required=True, metavar="KIND...")
@click.option(
    "--seed", type=click.IntRange(0), default=1, show_default=True, help="The same seed gives the same faults."
)
@click.option(
    "--duration",
    "duration",
    type=options.Duration(),
    metavar="S",
    help="Duration of each fault [default: depends on kind and seed].",
)
@click.option("--sham", "simulated", is_flag=True, help="Record the faults as truth, but do not inject them.")
@_step
@_throwaway
@_out
@options.output
def run(
    names: tuple[str, ...],
    seed: int,
    duration: float | None,
    simulated: bool,
    step_clock: bool,
    throwaway_vm: bool,
    out: Path,
    fmt: str,
) -> None:
    """Inject each KIND once, one after the other, and report what was injected, which programs were impacted, what was
    found, and when.
    """
    from dataclasses import replace

    from agent.cli.output import emit_rows
    from agent.lab.plan import one
    from agent.lab.replay import reported
    from agent.lab.report import ON_A_SCREEN, injected
    from agent.lab.truth import RECORDING

    signal.signal(signal.SIGINT, signal.default_int_handler)  # so that everything is removed at any time
    chosen = _chosen(names, step_clock, throwaway_vm)
    plan = [one(kind, seed + n) for n, kind in enumerate(chosen)]
    if duration:
        plan = [
            replace(fault, duration_s=duration, size=duration if kind.size.what == "duration_s" else fault.size)
            for kind, fault in zip(chosen, plan, strict=True)
        ]
    truth = _played([(fault,) for fault in plan], seed, out, frozenset(names) if simulated else frozenset())
    rows = injected(truth, reported(out / RECORDING))
    emit_rows(rows, fmt, ON_A_SCREEN if fmt == "table" else None, below="sentence")


@command.command("bench")
@click.option("--runs", type=click.IntRange(1), default=300, show_default=True, help="Number of faults.")
@click.option(
    "--seed-from",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Seed of the first session. Seeds from 1,000,000 on are reserved for evaluation: no rule was tuned on them.",
)
@click.option(
    "--each",
    type=click.IntRange(1),
    default=12,
    show_default=True,
    help="Faults per session. Agent and workload are restarted for each session.",
)
@click.option(
    "--kind",
    "names",
    type=options.LabKind(),
    multiple=True,
    metavar="KIND",
    help="Only these kinds; may be given several times [default: all].",
)
@_step
@_throwaway
@_out
@options.output
def bench(
    runs: int,
    seed_from: int,
    each: int,
    names: tuple[str, ...],
    step_clock: bool,
    throwaway_vm: bool,
    out: Path,
    fmt: str,
) -> None:
    """Inject many faults of all kinds, in sessions, and print the score. Started again with the same directory, it
    continues where it stopped.
    """
    from subprocess import CalledProcessError

    from agent.cli.output import note
    from agent.lab.plan import seeds, session
    from agent.lab.program import programs
    from agent.lab.truth import FILE

    signal.signal(signal.SIGINT, signal.default_int_handler)
    chosen = _chosen(names, step_clock, throwaway_vm)
    sessions, there, failed = seeds(seed_from, runs, each), programs(), 0
    for n, (seed, faults) in enumerate(sessions):
        place = out / f"{seed:07d}"
        if (place / FILE).exists():
            continue
        note(f"session {n + 1} of {len(sessions)}, seed {seed}")
        try:
            _played(session(chosen, seed, faults, there), seed, place, frozenset())
        except (AgentError, OSError, CalledProcessError) as error:  # the other results are still useful
            if isinstance(error, AgentError) and error.exit_code == PRIVILEGE:
                raise
            for line in f"session {n + 1} failed: {error}".splitlines():
                note(line)
            failed += 1
    if not failed or any(out.rglob(FILE)):
        _score(out, fmt)
    if failed:
        raise AgentError(f"{failed} of {len(sessions)} sessions failed", remedy="the same command tries them again")


@command.command("score")
@click.argument("directory", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="DIR")
@click.option(
    "--without",
    "without",
    multiple=True,
    metavar="RULE",
    help="Disable a cause of the diagnosis; may be given several times.",
)
@options.output
def score(directory: Path, without: tuple[str, ...], fmt: str) -> None:
    """Replay the recordings in DIR, of one session or of many, and compare the findings with the recorded truth. Needs
    no root.
    """
    _score(directory, fmt, without)


def _chosen(names: Sequence[str], step_clock: bool, throwaway_vm: bool) -> list[Kind]:
    from agent.lab.kind import kinds
    from agent.lab.stage.wallclock import require_throwaway

    if throwaway_vm:
        require_throwaway()
    known = kinds()
    refused = {need for need, allowed in (("step_clock", step_clock), ("throwaway_vm", throwaway_vm)) if not allowed}
    for name in names:
        if name not in known:
            import difflib

            near = difflib.get_close_matches(name, known, 1)
            raise AgentError(
                f"there is no kind of fault {name!r}",
                remedy=f"did you mean {near[0]}?" if near else "tickscope lab list",
                exit_code=USAGE,
            )
        if "step_clock" in refused & set(known[name].needs):
            raise AgentError(
                f"{name} steps the wall clock of this host", remedy="to allow this, use --step-clock", exit_code=USAGE
            )
        if "throwaway_vm" in refused & set(known[name].needs):
            raise AgentError(
                f"{name} is only for throw-away virtual machines",
                remedy="use --throwaway-vm in such a machine",
                exit_code=USAGE,
            )
    return [known[name] for name in names] if names else [k for k in known.values() if not refused & set(k.needs)]


def _played(plan: Sequence[Group], seed: int, out: Path, simulated: frozenset[str]) -> Truth:
    from agent.lab.session import LabSession

    return LabSession(plan, seed, out, simulated).play()


def _score(directory: Path, fmt: str, without: tuple[str, ...] = ()) -> None:
    from agent.cli.output import emit_doc, emit_rows, note
    from agent.lab.replay import score as scored
    from agent.lab.report import SCORE_COLUMNS, figures, notes

    whole = scored(
        directory,
        without,
        lambda file, why: note(f"note: {file} is cut off: {why}; later findings count as missing"),
    ).to_json()
    if fmt == "json":
        emit_doc(whole)
    else:
        emit_rows(figures(whole), fmt, SCORE_COLUMNS)
        for text in notes(whole):
            note(text)
    if not whole["hours"]:
        note(f"no truth below {directory}")
        click.get_current_context().exit(NO_ROWS)
