"""What is kept of a consumer group of Kafka between polls. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

from agent.queues.commits import Commits
from agent.queues.kafka_client import Key

_MOST = (1 << 63) - 1
#: Names of ConsumerGroupState. A KIP-848 group that assigns or reconciles comes as UNKNOWN.
_STATES = {
    "STABLE": "stable",
    "EMPTY": "empty",
    "DEAD": "dead",
    "PREPARING_REBALANCING": "rebalancing",
    "COMPLETING_REBALANCING": "rebalancing",
}


@dataclass
class RemovedRecords:
    """count: offsets of one partition that were deleted before the group committed them, since the first poll; None
    until it is known.
    """

    count: int | None = None
    _until: int = 0  # what is deleted below is counted, or is no loss

    def see(self, committed: int, start: int | None, end: int) -> None:
        """A poll. start: of the partition; None if it is not known, as it is where nothing waits."""
        first = committed if start is None and committed == end else start
        if first is None or committed > end:
            return
        if self.count is None or end < self._until:  # the topic was made anew
            self.count, self._until = self.count or 0, first
        self.count = min(_MOST, self.count + max(0, first - max(self._until, committed)))
        self._until = max(self._until, first)


@dataclass
class KafkaGroup:
    """members: number of members, None if unknown, as for a group whose consumers choose their partitions themselves.
    holders: the consumer by partition. rebalances: seen so far, as a state, or as members or partitions that changed
    between two polls; two between two polls count once. streams: whether it was seen to be a Streams group, of which
    librdkafka says that it is dead.
    """

    name: str
    state: str = ""
    members: int | None = None
    holders: dict[Key, str] = field(default_factory=dict)
    coordinator: Any = None
    rebalances: int = 0
    streams: bool = False
    commits: dict[Key, Commits] = field(default_factory=dict)
    removed: dict[Key, RemovedRecords] = field(default_factory=dict)
    _assigned: frozenset[tuple[str, Key | None]] | None = None

    def update(self, described: Any) -> None:
        """described: a ConsumerGroupDescription, None if it is not known."""
        if described is None:
            self.state, self.members, self.holders = "", None, {}
            return
        before, kind = self.state, getattr(getattr(described, "type", None), "name", "")  # older clients have none
        unnamed = "rebalancing" if kind == "CONSUMER" else "unknown"
        self.state = _STATES.get(described.state.name, unnamed)
        simple = described.is_simple_consumer_group and not described.members
        self.members = None if simple else len(described.members)
        self.coordinator = described.coordinator
        self.holders, assigned = {}, set[tuple[str, Key | None]]()
        for member in described.members:
            identity = member.group_instance_id or member.member_id  # of a static member: a restart is no rebalance
            assigned.add((identity, None))  # more members than partitions: some have none
            who = f"{member.group_instance_id or member.client_id}@{member.host.lstrip('/')}"
            for partition in member.assignment.topic_partitions if member.assignment else ():
                key = (partition.topic, partition.partition)
                self.holders[key] = who
                assigned.add((identity, key))
        self._count(before, frozenset(assigned))

    def _count(self, before: str, assigned: frozenset[tuple[str, Key | None]]) -> None:
        known, self._assigned = self._assigned, assigned
        if known is None or before == "rebalancing":
            return
        moved = self.state == "stable" and assigned != known  # it was too short to be seen
        self.rebalances += self.state == "rebalancing" or moved

    def keep(self, keys: Container[Key]) -> None:
        """Forgets partitions without a committed offset."""
        self.commits = {key: commits for key, commits in self.commits.items() if key in keys}
        self.removed = {key: removed for key, removed in self.removed.items() if key in keys}
