"""Too little memory: pages are reclaimed before they are used again, or the kernel has to free memory first, in the end
by killing the process.
"""

from __future__ import annotations

from collections.abc import Iterator

from agent.correlate.catalogue import Cause
from agent.correlate.cpu_starvation import READS as STARVED
from agent.correlate.cpu_starvation import cpu_share
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.resource_rules import MEMORY, OOM, READS, of_process, usual
from agent.correlate.view import View
from agent.correlate.waits import PEERS
from agent.correlate.words import process, render, text, value

#: Pages read again a second, and times the usual number: fewer do not make a process slow.
_FAULTS, _RATIO = 20.0, 3.0
#: Charges a second that met the limit, and had to free memory first: so many are a reason on their own, with a lower
#: score.
_MET = 50.0


def reclaimed(episode: Episode, view: View) -> Iterator[Verdict]:
    """Its cgroup's limit was met, and pages had to be read again meanwhile."""
    rows = of_process(episode, view, MEMORY)
    seconds = max(1.0, (episode.end_ns - episode.start_ns) / 1e9)
    faults, met = float(rows["faults"].clip(0).sum()), float(rows["events"].clip(0).sum())
    before = usual(episode, view)
    base = float(before["faults"][before["kind"] == MEMORY].clip(0).sum()) / 32 * seconds
    entry = item("resource", "pages read again", faults, "", column="faults", baseline=base, keys={"pid": episode.pid})
    usually = float(before["events"][before["kind"] == MEMORY].clip(0).sum()) / 32 * seconds
    again = faults >= _FAULTS * min(seconds, 3.0) and faults >= _RATIO * base
    if not met or not (again or (met >= _MET * seconds and met >= _RATIO * usually)):
        yield Verdict(CAUSE.name, 0.0, episode.scope, "no pages were read again for lack of memory", (entry,))
        return
    at = rows[rows["events"] > 0][-1]
    group = text(at["object"])
    words = render(
        "{who} reached the memory limit of its cgroup {group} {met} times and read {faults} pages again",
        who=process(episode.comm, episode.pid),
        group=group,
        met=value(met),
        faults=value(faults),
    )
    limit = item(
        "resource", "charges beyond the limit", met, "", column="events", object=group, keys={"pid": episode.pid}
    )
    score = (0.93 if again else 0.6) * (1 - cpu_share(episode, view))
    yield Verdict(
        CAUSE.name, score, episode.scope, words, (entry, limit), "", Culprit(episode.pid, episode.comm, group)
    )


def killed(episode: Episode, view: View) -> Iterator[Verdict]:
    """The kernel killed it to free memory."""
    rows = of_process(episode, view, OOM)
    if len(rows):
        where = text(rows[-1]["object"])
        who = process(episode.comm, episode.pid)
        words = render("the kernel killed {who} (cgroup {where} out of memory)", who=who, where=where)
        entry = item(
            "resource",
            "processes killed for lack of memory",
            float(rows[-1]["events"]),
            "",
            column="events",
            object=where,
            keys={"pid": episode.pid},
        )
        culprit = Culprit(episode.pid, episode.comm, where)
        yield Verdict(CAUSE.name, 0.97, episode.scope, words, (entry,), "oom", culprit)


def slowed(episode: Episode, view: View) -> Iterator[Verdict]:
    """A killed process was usually slow before."""
    its = list(killed(episode, view))
    yield from its or reclaimed(episode, view)


CAUSE = Cause(
    "memory",
    58,
    "a process has too little memory: its pages are reclaimed and read again, or the kernel kills it",
    {**READS, **STARVED, **PEERS},
    "give its cgroup more memory (memory.max), or reduce its use; effects of the limit: memory.events, memory.failcnt;"
    " tickscope query resource",
    {"decision_latency": slowed, "service_latency": slowed, "blocked_time": reclaimed, "resource_low": killed},
)
