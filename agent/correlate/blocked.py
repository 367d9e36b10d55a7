"""Rules about where the time of slow decisions went: peers, TLS, system calls, the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.correlate.episode import Episode, Verdict, item
from agent.correlate.join import inside, within
from agent.correlate.limiters import took
from agent.correlate.rows import groups, start_ticks
from agent.correlate.view import NO_PEER, View
from agent.correlate.words import peer, plural, process, span, text
from agent.tables import TABLES

_WAITING = TABLES["slow_syscall"].code("kind", "waiting")
_SHARE = 0.3  # of the time lost, from which a cause is worth naming
_MOST = 0.8  # of a wait, from which one round trip is all of it
_DELAYED_ACK_US = 50_000  # TCP_DELACK_MIN, and a tick: a peer that answers sooner may acknowledge with its answer


def _slow(episode: Episode, view: View) -> np.ndarray:
    """The episode's decisions that were slow."""
    d = view.decisions.between(episode.start_ns, episode.end_ns)
    d = d[d["limiter_id"] == str(episode.key[0]).encode()] if len(d) else d
    mine = d["pid"] == episode.pid if episode.pid is not None else d["pid"] <= 0
    return np.asarray(d[mine & (start_ticks(d) == episode.start_tick) & (took(d) > min(episode.bar, episode.value * 0.5))])


def _within(episode: Episode, view: View, table: str) -> tuple[np.ndarray, float, bool]:
    """(rows of a table behind the episode, time lost in ns, whether they lie inside decisions of their own thread).

    Rows that lie inside decisions count for the time that they lie inside: what began long before was idleness until then.
    """
    rows = view.own(view.during(table, episode), episode)
    if episode.symptom == "decision_latency":
        slow = _slow(episode, view)
        lost = float(np.maximum(took(slow) - episode.base, 0).sum())
        if len(slow):
            return _clipped(slow, rows), lost, bool((slow["tid"] >= 0).all())
    return rows, float(max(episode.end_ns - episode.start_ns, 1)), False


def _clipped(decisions: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The rows that ended inside a decision, their duration cut to the longest time inside one."""
    i, j = inside(decisions, rows)
    begun = decisions["t_ns"][i] - decisions["duration_ns"][i]
    most = np.zeros(len(rows), np.int64)
    np.maximum.at(most, j, rows["t_ns"][j] - begun)
    chosen = np.unique(j)
    out = np.asarray(rows[chosen])
    out["duration_ns"] = np.minimum(out["duration_ns"], most[chosen])
    return out


def _shaking(view: View, episode: Episode, calls: np.ndarray) -> np.ndarray:
    """Which calls ended within a TLS handshake of their own thread."""
    shakes = _within(episode, view, "tls_handshake")[0]
    hit = np.zeros(len(calls), np.bool_)
    if len(shakes) and len(calls):
        _, number = groups([np.concatenate([shakes["tid"], calls["tid"]])])
        n = len(shakes)
        hit[within(number[n:], calls["t_ns"], number[:n], shakes["t_ns"] - shakes["duration_ns"], shakes["t_ns"])[1]] = True
    return hit


def _peer_name(view: View, name: str) -> str:
    server = view.server(name)
    return f"{server[0]} (pid {server[1]}) at {name}" if server else name


def peers(episode: Episode, view: View) -> Iterator[Verdict]:
    """Waits on sockets: the peer did not answer, or the network towards it was slow, lossy or gone."""
    if episode.symptom not in ("decision_latency", "refusals"):
        return
    calls, lost, threaded = _within(episode, view, "slow_syscall")
    shaking = _shaking(view, episode, calls)
    to_peer, in_shake = calls[calls["peer"] != NO_PEER], shaking[calls["peer"] != NO_PEER]
    waited: dict[bytes, float] = {}
    in_tls: dict[bytes, float] = {}
    if len(to_peer):
        first, group = groups([to_peer["peer"]])
        sums = (np.bincount(group, to_peer["duration_ns"] * mask) for mask in (1, in_shake))
        for i, total, part in zip(first, *sums, strict=True):
            waited[to_peer["peer"][i].tobytes()] = float(total)
            in_tls[to_peer["peer"][i].tobytes()] = float(part)
    sure = 1.0 if threaded else 0.9
    nameless = (calls["peer"] == NO_PEER) & (calls["kind"] == _WAITING)
    unnamed = calls[nameless]
    if len(unnamed) and len(known := view.peers(episode)) == 1:
        # Waiting in poll or epoll tells no peer; with one peer only it can be no other.
        waited[known[0]] = waited.get(known[0], 0.0) + float(unnamed["duration_ns"].sum())
        in_tls[known[0]] = in_tls.get(known[0], 0.0) + float(unnamed["duration_ns"][shaking[nameless]].sum())
        sure *= 0.85
    summed: dict[bytes, float] = {}
    if not waited:
        worst = episode.value if episode.symptom == "decision_latency" else 0.0
        summed = {raw: ns for raw, ns in view.unusual_waits(episode).items() if 0.5 * worst <= ns <= 2 * max(worst, lost)}
        waited = dict.fromkeys(summed, lost)
        sure = 0.8
    for raw in {row.tobytes() for row in _failed(view.own(view.during("tcp_connect", episode), episode))["peer"]}:
        waited.setdefault(raw, 0.0)
    if not waited and episode.symptom == "decision_latency":
        yield Verdict("broker_slow", 0.0, "", "no wait of that process on a peer was seen in it")
    for raw, total in sorted(waited.items(), key=lambda entry: (-entry[1], entry[0])):
        share, own = (min(1.0, part / lost) if lost else 0.0 for part in (total, total - in_tls.get(raw, 0.0)))
        rows = _towards(to_peer, raw)
        longest = float(max(rows["duration_ns"].max(initial=0), unnamed["duration_ns"].max(initial=0), summed.get(raw, 0)))
        if episode.symptom == "decision_latency":
            longest = min(longest, episode.value)
        yield from _peer(episode, view, raw, (share, own), longest, sure)


def _peer(episode: Episode, view: View, raw: bytes, shares: tuple[float, float], longest: float, sure: float) -> Iterator[Verdict]:
    """shares: of the time lost, the waits on this peer, and those of them outside TLS handshakes, which explain themselves."""
    share, own = shares
    name = peer(raw)
    host = name.rpartition(":")[0]  # one network leads to all ports of a host
    who = _peer_name(view, name)
    usual, worst = view.rtt_us(raw, episode)
    sent_again = _towards(view.during("tcp_retransmit", episode), raw)
    again = int(np.maximum(sent_again["count"], 1).sum())
    resets = _towards(view.during("tcp_reset", episode), raw)
    failed = _failed(_towards(view.during("tcp_connect", episode), raw))
    wait = item("slow_syscall", "time waiting on the peer", longest, "ns", peer=name, pid=episode.pid, share=round(share, 2))
    rtt = item("tcp_rtt", "smoothed RTT", worst, "us", peer=name, baseline=usual)
    slower = usual is not None and worst is not None and (worst - usual) * 1e3 >= _SHARE * longest and worst > 2 * usual
    steady = steadily(usual, worst)
    quickest = view.quickest_us(raw, episode) if slower else None
    held = slower and quickest is None and (worst or 0) - (usual or 0) <= _DELAYED_ACK_US  # the peer may have held its acknowledgements
    slower &= not held or ((worst or 0) - (usual or 0)) * 1e3 >= _MOST * longest
    if slower and quickest is not None and quickest < _SHARE * (worst or 0):
        slower, steady = False, f"while {span(quickest * 1e3)} were enough for a round trip to that address"
    if len(failed):
        yield Verdict("broker_down", 0.95 * sure, name, f"{who} refused or failed {plural(len(failed), 'connection')}",
                      (item("tcp_connect", "failed connects", len(failed), "", peer=name, errno=int(failed["errno"][0])), wait))
    if again and share >= _SHARE:
        yield Verdict("network_loss", 0.9 * share * sure, host, f"{plural(again, 'segment')} had to be sent again between it and {who}",
                      (item("tcp_retransmit", "segments sent again", again, "", peer=name), wait, rtt))
    elif not again:
        yield Verdict("network_loss", 0.0, name, f"no segment to {name} was sent again")
    if slower and share >= _SHARE:
        yield Verdict("network_rtt", (0.65 if held else 0.88) * share * sure, host,
                      f"the network RTT to {who} rose from {span((usual or 0) * 1e3)} to {span((worst or 0) * 1e3)}"
                      + (", unless it acknowledged only with its answers" if held else ""), (rtt, wait))
    elif worst is not None:
        yield Verdict("network_rtt", 0.0, name, f"the network RTT to {name} was {span(worst * 1e3)}"
                      + (f", usually {span(usual * 1e3)}" if usual is not None else ""))
    server = view.server(name)
    starved = min(view.starved_ns(server[1], episode), longest) if server else 0.0
    if own >= _SHARE and not slower and starved > 0.5 * longest:
        yield waiting_for_cpu(process(*server) if server else "", starved, server[1] if server else None, 0.88 * own * sure)
    elif own >= _SHARE and not slower:
        certain = (0.97 if worst is not None else 0.75) * (0.7 if again else 1.0) * (0.8 if len(resets) or len(failed) else 1.0)
        yield Verdict("broker_slow", certain * own * sure, name, f"{who} did not answer for {span(longest)} {steady}", (wait, rtt))


def steadily(usual: float | None, worst: float | None) -> str:
    """What the network did meanwhile, where it is not to blame; us."""
    if worst is None:
        return "; the network RTT then is not known"
    if usual is not None and worst > 2 * usual:
        return f"while the smoothed RTT rose only from {span(usual * 1e3)} to {span(worst * 1e3)}"
    return f"while the network RTT stayed at {span(worst * 1e3)}"


def waiting_for_cpu(who: str, queued: float, pid: int | None, score: float) -> Verdict:
    """All that starve at one time starve of one cause: it has no scope."""
    return Verdict("cpu", score, "", f"{who} was ready to run but waited {span(queued)} for a CPU",
                   (item("syscall_latency", "time waiting for a CPU", queued, "ns", pid=pid),))


def _towards(rows: np.ndarray, raw: bytes) -> np.ndarray:
    return np.asarray(rows[rows["peer"] == np.frombuffer(raw, "V18")[0]])


def _failed(connects: np.ndarray) -> np.ndarray:
    return np.asarray(connects[connects["result"] == TABLES["tcp_connect"].code("result", "failed")])


def tls(episode: Episode, view: View) -> Iterator[Verdict]:
    if episode.symptom != "decision_latency":
        return
    rows, lost, threaded = _within(episode, view, "tls_handshake")
    share = min(1.0, float(rows["duration_ns"].sum()) / lost) if lost else 0.0
    if share < _SHARE:
        spent = f"TLS handshakes took {span(float(rows['duration_ns'].sum()))} of it"
        yield Verdict("tls", 0.0, "", spent if len(rows) else "no slow TLS handshake in it")
        return
    longest = float(rows["duration_ns"].max())
    name = peer(rows["peer"][int(np.argmax(rows["duration_ns"]))].tobytes())
    words = f"a TLS handshake{f' with {name}' if name else ''} took {span(longest)}"
    yield Verdict("tls", (0.98 if threaded else 0.85) * share, episode.scope, words,
                  (item("tls_handshake", "handshakes inside decisions", len(rows), "", longest_ns=longest, peer=name, pid=episode.pid),))


def syscall(episode: Episode, view: View) -> Iterator[Verdict]:
    """Calls held up on something other than a peer: files, locks on files, pipes that are full."""
    if episode.symptom not in ("decision_latency", "accept_overflow"):
        return
    rows, lost, threaded = _within(episode, view, "slow_syscall")
    rows = rows[(rows["kind"] != _WAITING) & (rows["peer"] == NO_PEER)]
    if not len(rows):
        yield Verdict("syscall", 0.0, "", "no system call of that process was held up")
        return
    first, group = groups([rows["syscall"], rows["fd_type"]])
    totals = np.bincount(group, rows["duration_ns"])
    at = int(np.argmax(totals))
    share = min(1.0, float(totals[at]) / lost) if lost else 0.0
    call, fd = text(rows["syscall"][first[at]]), text(rows["fd_type"][first[at]])
    longest = float(rows["duration_ns"][group == at].max())
    words = f"the system call {call}{f' on a {fd}' if fd else ''} of {process(episode.comm, episode.pid)} was held up for {span(longest)}"
    entry = item("slow_syscall", call, longest, "ns", fd_type=fd, calls=int((group == at).sum()), pid=episode.pid, share=round(share, 2))
    queued = float(rows["run_queue_ns"][group == at].clip(0).sum())
    yield Verdict("syscall", (0.96 if threaded else 0.8) * share * (0.5 if queued > 0.5 * totals[at] else 1.0) if share >= _SHARE else 0.0,
                  episode.scope, words, (entry,))


def cpu(episode: Episode, view: View) -> Iterator[Verdict]:
    """Ready to run but not running."""
    if episode.symptom not in ("decision_latency", "accept_overflow"):
        return
    calls, lost, _ = _within(episode, view, "slow_syscall")
    inside_ns = float(calls["run_queue_ns"].clip(0).sum())
    whole = view.own(view.sums(episode), episode)
    share = min(1.0, max(inside_ns / lost if lost else 0.0, 0.7 * float(whole["run_queue_ns"].sum()) / lost if lost else 0.0))
    queued = max(inside_ns, float(whole["run_queue_ns"].sum()))
    if share < _SHARE:
        yield Verdict("cpu", 0.0, "", f"it waited {span(queued)} for a CPU")
        return
    if episode.symptom == "decision_latency":
        queued = min(queued, lost)  # the sums per second also hold what was waited before and after
    yield waiting_for_cpu(process(episode.comm, episode.pid), queued, episode.pid, 0.9 * share)
