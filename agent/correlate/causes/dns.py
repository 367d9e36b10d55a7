"""A name took long to resolve, or did not: the name server was slow, silent, refusing, or not there."""

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

#: Of decisions that failed, from which failed lookups are the reason.
_MOST = 0.5
_SATURATED = 0.6  # how sure slow lookups are the name server's, where this host's processors were short
_OK = RESULT.names.index("ok")
_TIMES, _BEFORE_NS = 3, 60 * SECOND  # as often as usual, in the time before


def unresolved(episode: Episode, view: View) -> Iterator[Verdict]:
    """Decisions waited for names."""
    a = lookups_of(episode, view)
    if a is None:
        yield Verdict(CAUSE.name, 0.0, "", "the process waited for no name server meanwhile")
        return
    if a.starving or a.slower:
        return
    if a.quickest is not None and a.quickest * 1e3 >= SHARE * a.longest:
        words = render(
            "a round trip to the name server's address took {quickest} itself", quickest=span(a.quickest * 1e3)
        )
        yield Verdict(CAUSE.name, 0.0, a.where, words, a.evidence)
        return
    if a.refused and a.share < SHARE:
        words = render("{who} refused or failed {n}", who=a.who, n=value(a.refused, "connection"))
        yield _verdict(a, 0.9, words, "refused")
        return
    certain = 0.97 if a.quickest is not None or a.worst is not None or a.result else 0.85
    certain *= 0.6 if a.again else 1.0  # the way to it was bad for others, too
    words = render(
        "{who} did not answer for {longest}{times}{name}{meanwhile}",
        who=a.who,
        longest=span(a.longest),
        times=render(", {n} times, {total} in all", n=value(a.times), total=span(a.total)) if a.times > 1 else "",
        name=_name(a),
        meanwhile=_meanwhile(a),
    )
    yield _verdict(a, certain * a.share if a.share >= SHARE else 0.0, words, _detail(a))


def failing(episode: Episode, view: View) -> Iterator[Verdict]:
    """Decisions failed, about as many as lookups; or answers did, of a server that looks names up."""
    if is_about_answers(episode):
        for instance in instances(episode, view):
            yield from _gone(instance, view, _more(instance, view))
        return
    a = lookups_of(episode, view)
    errors = episode.facts.get("errors", 0.0)
    if a is not None and errors and a.failed >= _MOST * errors:
        words = render(
            "{who} {did} {n}{name}",
            who=a.who,
            did="did not answer" if a.result == "timeout" else f"answered with {a.result}",
            n=value(a.failed, "lookup"),
            name=_name(a),
        )
        yield _verdict(a, 0.92 if not a.again else 0.6, words, _detail(a))
    else:
        yield from unresolved(episode, view)


def gone(episode: Episode, view: View) -> Iterator[Verdict]:
    """Lookups failed, with nothing else to suffer from it."""
    yield from _gone(episode, view, _failed(view.during("dns_lookup", episode), episode, view))


def _failed(rows: np.ndarray, episode: Episode, view: View) -> np.ndarray:
    rows = failed(view.own(rows, episode))
    return np.asarray(rows[(rows["result"] >= 0) & (rows["result"] < len(RESULT.names))])


def _more(episode: Episode, view: View) -> np.ndarray:
    """Those that failed as several times as many do as usually: some programs ask for names that there are not all the
    time.
    """
    rows = _failed(view.during("dns_lookup", episode), episode, view)
    before = _failed(
        view.rings["dns_lookup"].between(episode.start_ns - _BEFORE_NS, episode.start_ns - SECOND), episode, view
    )
    much, usual = (np.bincount(part["result"], minlength=len(RESULT.names)) for part in (rows, before))
    lasted = (episode.end_ns - episode.start_ns + 2 * SECOND) / (_BEFORE_NS - SECOND)
    return np.asarray(rows[(much > _TIMES * lasted * usual)[rows["result"]]])


def _gone(episode: Episode, view: View, rows: np.ndarray) -> Iterator[Verdict]:
    """Where nobody could be asked, the name server is the one that answered before."""
    if not len(rows):
        return
    asked_ = rows["peer"][rows["peer"] != NO_PEER]
    raw = asked_[-1].tobytes() if len(asked_) else cast(bytes, episode.key[2]) if len(episode.key) > 2 else bytes(18)
    result = RESULT.word(int(np.bincount(rows["result"]).argmax()))
    server = f"name server {peer(raw)}" if peer(raw) else "the resolver"
    did = {"timeout": "did not answer", "error": "could not be asked for"}.get(result, f"answered with {result}")
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
    """Lookups took long, with nothing else to suffer from it. What else was resolved meanwhile tells whether all names
    are slow there.
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
    # An address of loopback is another name server in each network namespace, and rows do not tell whose is whose.
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


def _verdict(a: ProcessLookups, score: float, words: Words, detail: str) -> Verdict:
    return Verdict(CAUSE.name, score * a.sure, a.where, words, a.evidence, detail, a.culprit)


def _detail(a: ProcessLookups) -> str:
    """The finer word: how it ended, and where it did well how it took so long."""
    if a.result in ("", "ok", "nodata"):
        return "unanswered" if not a.result else "lost" if (a.tries or 1) > 1 else "slow"
    return a.result


def _name(a: ProcessLookups) -> Words:
    if not a.name:
        return ""
    again = render(", asked {n} times", n=value(a.tries)) if a.tries and a.tries > 1 else ""
    return render(" ({name}{again})", name=a.name, again=again)


def _meanwhile(a: ProcessLookups) -> Words:
    if not a.server:
        return ""
    if a.again:
        return render("; {again} to that address had to be sent again meanwhile", again=value(a.again, "TCP segment"))
    if a.quickest is not None:
        return render(" while a round trip to that address took {quickest}", quickest=span(a.quickest * 1e3))
    if a.worst is None:
        return "; what the network did meanwhile is not known"
    return render(" while the network RTT to it was {worst}", worst=span(a.worst * 1e3))


CAUSE = Cause(
    "dns",
    45,
    "a name resolved slowly or not at all: its name server was slow, silent, refusing or down",
    {**ANSWERS, **READS, **CPUS},
    "ask it yourself: dig +tries=1 @SERVER NAME; its log and load; tickscope query dns_lookup --group-by peer",
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
