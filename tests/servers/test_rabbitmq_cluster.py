"""A quorum queue of a real RabbitMQ cluster: another node becomes its leader, and the leader's node is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.queues.brokers.rabbitmq import RabbitQueues, RabbitUrl
from agent.queues.judged import Judged
from tests.patience import until
from tests.servers.polled import poll
from tests.servers.rabbitmq import Rabbit, client, release_root

LOOK_UP = '{ok, Q} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"orders">>)),'
STATES = {b"ok", b"stopped", b"unknown", b"down"}


def leader(node: Rabbit) -> str:
    found = next(one for one in node.manage("GET", "queues") if one["name"] == "orders")
    return str(found["leader"])


@pytest.mark.parametrize("release", ["own", "trixie"])
def test_a_queue_stays_the_same_one_whichever_node_leads_it(release: str, tmp_path: Path) -> None:
    root = None if release == "own" else release_root(release)
    nodes: list[Rabbit] = []
    queues: list[Judged] = []
    clusters, twice = set[bytes](), list[bool]()

    def polled(name: bytes) -> np.ndarray:
        rows = np.concatenate([poll(queue) for queue in queues])
        return np.asarray(rows[rows["destination"] == name])

    def until_orders(what: Callable[[np.ndarray], bool], limit_s: float = 60) -> None:
        """Each round has at most one row of the queue, beside that of a node that is down. It is not gone."""

        def fits() -> bool:
            its = polled(b"orders")
            assert set(its["status"].tolist()) <= STATES, its
            assert np.count_nonzero(its["status"] != b"down") <= 1, its
            twice.append(len(its) > 1)
            clusters.update(its["cluster"].tolist())
            return what(its)

        until(fits, limit_s, 0.5)

    def until_mails(what: Callable[[Any], bool], never: Collection[bytes] = ()) -> None:
        """Of a queue whose clients are at another node than its leader."""

        def fits() -> bool:
            its = polled(b"mails")
            assert not set(its["status"].tolist()) & set(never), its
            return len(its) == 1 and what(its[0])

        until(fits, 60, 0.5)

    def lasts(seconds: float) -> None:
        end = time.monotonic() + seconds
        until_orders(lambda _: time.monotonic() > end)

    def led_by(*leaders: Rabbit) -> Callable[[np.ndarray], bool]:
        """With all its messages."""
        ports = {node.port.to_bytes(2, "little") for node in leaders}
        return lambda its: len(its) == 1 and its[0]["peer"].tobytes()[16:] in ports and its[0]["lag_messages"] == 101

    try:
        for number in range(3):
            (tmp_path / str(number)).mkdir()
            nodes.append(Rabbit(tmp_path / str(number), root=root, joins=nodes[0] if nodes else None))
        nodes[0].declare("orders", "quorum")
        nodes[0].publish("orders", 101, delivery_mode=2)
        urls = [RabbitUrl.parse(node.with_management) for node in nodes]
        queues += [Judged("rabbitmq", RabbitQueues(url, timeout_s=20)) for url in urls]
        first = next(node for node in nodes if node.node == leader(nodes[0]))
        until_orders(led_by(first))
        second = next(node for node in nodes if node is not first)
        second.ctl("eval", f"{LOOK_UP} rabbit_quorum_queue:transfer_leadership(Q, '{second.node}').")
        until_orders(led_by(second))
        lasts(15)  # until the first one would call it gone
        second.declare("mails", "quorum")
        second.ctl(
            "eval", f"{LOOK_UP.replace('orders', 'mails')} rabbit_quorum_queue:transfer_leadership(Q, '{second.node}')."
        )
        with client("publish", first.port, "mails", 50), client("consume", second.port, "mails", 5, "never"):
            until_mails(lambda row: row["in_per_s"] > 20 and row["pending"] == 5)
            with client("consume", first.port, "mails", 1, 0.1):  # it is slow, so that messages wait
                until_mails(lambda row: row["out_per_s"] > 0)
                ends = time.monotonic() + 20
                until_mails(lambda row: time.monotonic() > ends, {b"stalled", b"stopped"})
        second.kill()
        others = [node for node in nodes if node is not second]
        until_orders(led_by(*others))
        lasts(15)
        until_orders(led_by(*others))
        its = np.concatenate([poll(queue) for queue in queues])
        (row,) = its[its["destination"] == b"orders"]
        assert b"other nodes" in row["inexact_reason"] and row["lag_at_least"] < 0  # its clients may be there
        assert len(clusters) == 1
        assert sum(twice) <= 1  # the new leader answered right after the dead one
    finally:
        for queue in queues:
            queue.close()
        for node in reversed(nodes):
            node.end()
