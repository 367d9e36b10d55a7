"""The symptoms and causes, as data: what the diagnosis says today from its catalogue, and words for the names that are kept for rules to come."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """said: the diagnosis of today can say it; else the word is kept for a rule to come, and for counters and queries that name it."""

    name: str
    meaning: str
    said: bool


def symptoms() -> list[Entry]:
    """In the order of the table's declaration. Raises KeyError for one without words."""
    from agent.correlate import catalogue
    from agent.tables import SYMPTOMS

    said = catalogue.symptoms()
    return [Entry(name, said[name].meaning if name in said else _SYMPTOMS[name], name in said) for name in SYMPTOMS.split()]


def causes() -> list[Entry]:
    """The same of causes."""
    from agent.correlate import catalogue
    from agent.tables import CAUSES

    said = catalogue.causes()
    return [Entry(name, said[name].meaning if name in said else _CAUSES[name], name in said) for name in CAUSES.split()]


_SYMPTOMS = {
    "silence": "what reported regularly is no longer heard",
    "process_stopped": "a process stands still (SIGSTOP, a frozen cgroup)",
    "process_gone": "a process that took part has ended",
    "receiver_stalled": "who should read a connection does not",
    "sender_stalled": "who should write to a connection does not",
    "handshake_latency": "TLS handshakes take longer than usual",
    "handshake_failures": "TLS handshakes fail",
    "connect_latency": "connects take longer than usual",
    "connect_failures": "connects fail",
    "network_rtt": "the round-trip time to a peer is higher than usual",
    "network_loss": "segments to a peer are sent again",
    "service_latency": "a server's answers take longer than usual",
    "service_errors": "a server's answers are errors",
    "blocked_time": "a process is held up in system calls",
    "redelivery": "messages are delivered more than once",
    "rebalancing": "a consumer group changes again and again",
    "entries_lost": "entries went before anybody read them",
    "duplicates": "the same entry was produced twice",
    "resource_low": "descriptors, memory, disk or clients are nearly used up",
}
_CAUSES = {
    "dns": "a name took long to resolve, or did not",
    "disk": "a disk was slow, frozen or busy with others",
    "memory": "memory was short: reclaim, swapping, the out-of-memory killer",
    "peer_stopped": "the process at the other end stood still",
    "failover": "another node of the broker took over",
    "process_stopped": "a process was stopped",
    "process_killed": "a process was killed",
    "process_restarted": "a process was started again",
    "resource_limit": "a limit was reached: descriptors, disk, clients, memory",
    "retry_storm": "clients that try again made it worse",
}
