"""A name resolved slowly, or not at all: the name server was slow, silent, refusing, or not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from agent.correlate.answered import READS as ANSWERS
from agent.correlate.answered import instances, is_about_answers
from agent.correlate.catalogue import Cause
from agent.correlate.cpu_starvation import READS as CPUS
from agent.correlate.cpu_starvation import cpu_saturated
from agent.correlate.episode import Culprit, Episode, Verdict, item
from agent.correlate.local import is_loopback
from agent.correlate.lookups import SLOW_NS
from agent.correlate.resolvers import READS, RESULT, ProcessLookups, failed, lookups_of
from agent.correlate.thresholds import SECOND
from agent.correlate.view import NO_PEER, View, place
from agent.correlate.waits import SHARE
from agent.correlate.words import Words, peer, render, span, text, value

#: Failed lookups explain failed decisions from this share on.
_MOST = 0.5
_SATURATED = 0.6  # factor for slow lookups while this host's CPUs were busy
_OK = RESULT.names.index("ok")
_TIMES, _BEFORE_NS = 3, 60 * SECOND  # times the usual number, in the time before


def unresolved(episode: Episode, view: View) -> Iterator[Verdict]:
    """Decisions waited for names."""
    lookups = lookups_of(episode, view)
    if lookups is None:
        yield Verdict(CAUSE.name, 0.0, "", "the process did not wait for a name server meanwhile")
        return
    if lookups.starving or lookups.slower:
        return
    if lookups.quickest is not None and lookups.quickest * 1e3 >= SHARE * lookups.longest:
        words = render(
            "a round trip to the name server's address alone took {quickest}", quickest=span(lookups.quickest * 1e3)
        )
        yield Verdict(CAUSE.name, 0.0, lookups.where, words, lookups.evidence)
        return
    if lookups.refused and lookups.share < SHARE:
        words = render("{who} refused or failed {n}", who=lookups.who, n=value(lookups.refused, "connection"))
        yield _verdict(lookups, 0.9, words, "refused")
        return
    certain = 0.97 if lookups.quickest is not None or lookups.worst is not None or lookups.result else 0.85
    certain *= 0.6 if lookups.again else 1.0  # the path to it was bad for TCP, too
    words = render(
        "{who} did not answer for {longest}{times}{name}{meanwhile}",
        who=lookups.who,
        longest=span(lookups.longest),
        times=render(", {n} times, {total} in all", n=value(lookups.times), total=span(lookups.total))
        if lookups.times > 1
        else "",
        name=_name(lookups),
        meanwhile=_meanwhile(lookups),
    )
    yield _verdict(lookups, certain * lookups.share if lookups.share >= SHARE else 0.0, words, _detail(lookups))


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """About as many lookups as decisions failed; or answers of a server that looks names up failed."""
    if is_about_answers(episode):
        for instance in instances(episode, view):
            yield from _gone(instance, view, _more(instance, view))
        return
    lookups = lookups_of(episode, view)
    errors = episode.facts.get("errors", 0.0)
    if lookups is not None and errors and lookups.failed >= _MOST * errors:
        words = render(
            "{who} {did} {n}{name}",
            who=lookups.who,
            did="did not answer" if lookups.result == "timeout" else f"answered with {lookups.result}",
            n=value(lookups.failed, "lookup"),
            name=_name(lookups),
        )
        yield _verdict(lookups, 0.92 if not lookups.again else 0.6, words, _detail(lookups))
    else:
        yield from unresolved(episode, view)


def gone(episode: Episode, view: View) -> Iterator[Verdict]:
    """Lookups failed, without another symptom."""
    yield from _gone(episode, view, _failed(view.during("dns_lookup", episode), episode, view))


def _failed(rows: np.ndarray, episode: Episode, view: View) -> np.ndarray:
    rows = failed(view.own(rows, episode))
    return np.asarray(rows[(rows["result"] >= 0) & (rows["result"] < len(RESULT.names))])


def _more(episode: Episode, view: View) -> np.ndarray:
    """Failed lookups with several times the usual number: some programs ask for non-existent names all the time."""
    rows = _failed(view.during("dns_lookup", episode), episode, view)
    before = _failed(
        view.rings["dns_lookup"].between(episode.start_ns - _BEFORE_NS, episode.start_ns - SECOND), episode, view
    )
    now, usual = (np.bincount(part["result"], minlength=len(RESULT.names)) for part in (rows, before))
    lasted = (episode.end_ns - episode.start_ns + 2 * SECOND) / (_BEFORE_NS - SECOND)
    return np.asarray(rows[(now > _TIMES * lasted * usual)[rows["result"]]])


def _gone(episode: Episode, view: View, rows: np.ndarray) -> Iterator[Verdict]:
    """If no server could be asked, the name server is the one that answered before."""
    if not len(rows):
        return
    servers = rows["peer"][rows["peer"] != NO_PEER]
    raw = servers[-1].tobytes() if len(servers) else cast(bytes, episode.key[2]) if len(episode.key) > 2 else bytes(18)
    result = RESULT.word(int(np.bincount(rows["result"]).argmax()))
    server = f"name server {peer(raw)}" if peer(raw) else "the resolver"
    did = {"timeout": "did not answer", "error": "could not be reached for"}.get(result, f"answered with {result}")
    words = render(
        "{who} {did} {n} ({name})", who=server, did=did, n=value(len(rows), "lookup"), name=text(rows["name"][-1])
    )
    entry = item(
        "dns_lookup",
        "lookups failed",
        len(rows),
        "",
        column="result",
        keys={"pid": episode.pid, "peer": peer(raw), "result": result},
    )
    yield Verdict(
        CAUSE.name,
        0.92,
        place(peer(raw), raw, view.netns(episode, raw)),
        words,
        (entry,),
        result,
        Culprit(object=peer(raw)),
    )


def slow(episode: Episode, view: View) -> Iterator[Verdict]:
    """Lookups took long, without another symptom. Other lookups at the same time show whether all names are
    slow there.
    """
    everybody = view.during("dns_lookup", episode)
    everybody = everybody[everybody["result"] == _OK]
    own = view.own(everybody, episode)
    rows = own[own["duration_ns"] >= SLOW_NS]
    if not len(rows):
        return
    top = rows[int(np.argmax(rows["duration_ns"]))]
    rows = rows[(rows["peer"] == top["peer"]) | (rows["peer"] == NO_PEER[0])]
    raw = top["peer"].tobytes() if top["peer"] != NO_PEER[0] else cast(bytes, episode.key[2])
    # An address of loopback is another name server in each network namespace, and rows do not have the namespace.
    same = own if is_loopback(raw) else everybody
    quick = same[(same["peer"] == np.frombuffer(raw, "V18")[0]) & ~np.isin(same["name"], rows["name"])]
    others = float(quick["duration_ns"].max(initial=0))  # those below ``evidence_floor_ns`` are not kept
    words = render(
        "{who} took up to {longest} for {n} ({name}){others}",
        who=f"name server {peer(raw)}" if peer(raw) else "the resolver",
        longest=span(float(top["duration_ns"])),
        n=value(len(rows), "lookup"),
        name=text(top["name"]),
        others=(
            render(", and at most {quick} for other names", quick=span(others))
            if len(quick) and others < SLOW_NS
            else ""
        ),
    )
    entry = item(
        "dns_lookup",
        "time to look a name up",
        float(top["duration_ns"]),
        "ns",
        column="duration_ns",
        lookups=len(rows),
        keys={"pid": episode.pid, "peer": peer(raw), "name": text(top["name"])},
    )
    where = place(peer(raw), raw, view.netns(episode, raw))
    sure = 0.9 * (_SATURATED if cpu_saturated(episode, view) else 1.0)
    yield Verdict(
        CAUSE.name, sure, where, words, (entry,), "lost" if top["tries"] > 1 else "slow", Culprit(object=peer(raw))
    )


def _verdict(lookups: ProcessLookups, score: float, words: Words, detail: str) -> Verdict:
    return Verdict(CAUSE.name, score * lookups.sure, lookups.where, words, lookups.evidence, detail, lookups.culprit)


def _detail(lookups: ProcessLookups) -> str:
    """The detail: how the lookup ended, and for a successful one why it took long."""
    if lookups.result in ("", "ok", "nodata"):
        return "unanswered" if not lookups.result else "lost" if (lookups.tries or 1) > 1 else "slow"
    return lookups.result


def _name(lookups: ProcessLookups) -> Words:
    if not lookups.name:
        return ""
    again = render(", asked {n} times", n=value(lookups.tries)) if lookups.tries and lookups.tries > 1 else ""
    return render(" ({name}{again})", name=lookups.name, again=again)


def _meanwhile(lookups: ProcessLookups) -> Words:
    if not lookups.server:
        return ""
    if lookups.again:
        return render(
            "; {again} to that address had to be retransmitted meanwhile", again=value(lookups.again, "TCP segment")
        )
    if lookups.quickest is not None:
        return render(" while a round trip to that address took {quickest}", quickest=span(lookups.quickest * 1e3))
    if lookups.worst is None:
        return "; what the network did meanwhile is not known"
    return render(" while the network RTT to it was {worst}", worst=span(lookups.worst * 1e3))


CAUSE = Cause(
    "dns",
    45,
    "a name resolved slowly or not at all: its name server was slow, silent, refusing or down",
    {**ANSWERS, **READS, **CPUS},
    "query it: dig +tries=1 @SERVER NAME; its log and load; tickscope query dns_lookup --group-by peer",
    {
        "decision_latency": unresolved,
        "service_latency": unresolved,
        "refusals": failing,
        "service_errors": failing,
        "lookup_failures": gone,
        "lookup_latency": slow,
    },
    facts=("errors",),
)
