"""The findings that the correlator makes of a session's recording, in the form for the judge. Needs no root and no
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from agent.correlate.catalogue import Cause, causes
from agent.correlate.correlator import Correlator
from agent.correlate.replay import State, states
from agent.errors import USAGE, AgentError
from agent.lab.judge import Reported, by_finding
from agent.lab.score import Score
from agent.lab.truth import FILE, RECORDING, Truth
from agent.store.recording import Recording
from agent.tables import TABLES

#: Suffix of a session that is still being copied.
PART = ".part"
#: Gets the file, and the reason why it ends there.
OnTruncated = Callable[[Path, str], None]


def reported(
    recording: Path, without: Collection[str] = (), on_truncated: OnTruncated = lambda _file, _why: None
) -> list[Reported]:
    """without: names of rules to leave out. on_truncated: called if the recording is truncated. Raises AgentError for a
    foreign or damaged file, and for an unknown rule.
    """
    correlator = Correlator(causes_to_judge=_others(without))
    read = Recording(recording)
    result = by_finding((state.t_ns, _row(state)) for state in states(correlator, read.events()))
    if read.cut:
        on_truncated(recording, read.cut)
    return result


def rules() -> dict[str, Cause]:
    """The causes that have a rule, by name."""
    return {name: cause for name, cause in causes().items() if cause.explains}


def _others(without: Collection[str]) -> tuple[Cause, ...]:
    known = rules()
    if unknown := sorted(set(without) - set(known)):
        raise AgentError(f"there is no rule {unknown[0]!r}", remedy=f"one of: {', '.join(known)}", exit_code=USAGE)
    return tuple(cause for name, cause in known.items() if name not in without)


def _row(state: State) -> dict[str, object]:
    """A finding's row, with the names of its causes, best first, and all names in its evidence."""
    row = {c.name: _plain(state.finding[c.name][0]) for c in TABLES["finding"].columns}
    verdicts = state.verdicts
    held = verdicts[(verdicts["score"] > 0) | (verdicts["cause"] == b"unknown")]
    named = [_plain(text) for one in state.evidence for text in (one["object"], one["keys"], one["details"])]
    return {**row, "causes": list(map(_plain, held["cause"])), "evidence": " ".join(map(str, named))}


def _plain(value: object) -> object:
    value = value.item() if hasattr(value, "item") else value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def sessions(directory: Path) -> Iterator[Path]:
    """The directory itself, or those below it with a truth file, in order."""
    yield from sorted(path.parent for path in directory.rglob(FILE) if path.parent.suffix != PART)


def score(
    directory: Path, without: Collection[str] = (), on_truncated: OnTruncated = lambda _file, _why: None
) -> Score:
    """Raises AgentError."""
    result = Score()
    for session in sessions(directory):
        result.add(Truth.read(session), reported(session / RECORDING, without, on_truncated))
    return result
