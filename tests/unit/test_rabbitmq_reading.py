"""What is made of a RabbitMQ node's metrics: Prometheus's text format, totals of channels that come and go, ages by the
history of arrivals.
"""

from __future__ import annotations

import json
from math import inf, isnan
from typing import Any

import pytest

from agent.common.clocks import boot_ns
from agent.common.http_get import HttpClient, HttpDown
from agent.queues.brokers import rabbitmq
from agent.queues.brokers.rabbitmq import RabbitQueues, RabbitUrl, text_of
from agent.queues.judged import Judged
from agent.queues.leaders import Leaders
from agent.queues.prometheus_text import MAX_LINE_BYTES, NotPrometheus, metric_samples
from agent.queues.queue import Row
from agent.queues.rabbitmq_management import Management, about_queues, amqp_port, queue_consumers, unlimited
from tests.unit.parser_pieces import Canned

S = 1_000_000_000
D = "rabbitmq_detailed_"


@pytest.mark.parametrize(
    ("text", "value", "labels"),
    [
        (b"a 5\n", 5.0, {}),
        (b"a{} .5e1 1395066363000\n", 5.0, {}),
        (b'a{b="c",d="e",} 5\n', 5.0, {b"b": b"c", b"d": b"e"}),
        (b'# HELP a "{\n# anything\n\n a\n'.replace(b" a\n", b"") + b'a { b = "}{" } +5.0\n', 5.0, {b"b": b"}{"}),
        (b'a{b="\\"\\\\\\n"} 5\n', 5.0, {b"b": b'"\\\n'}),
        (b'a{b="\xff\xc3\xa9"} 5\n', 5.0, {b"b": b"\xff\xc3\xa9"}),
        (b"a Inf\n", float("inf"), {}),
    ],
)
def test_a_sample_of_the_text_format(text: bytes, value: float, labels: dict[bytes, bytes]) -> None:
    (sample,) = metric_samples(b'other{x="y"} 1\n' + text, {b"a"})
    assert (sample.name, sample.value, dict(sample.labels)) == (b"a", value, labels)


@pytest.mark.parametrize(
    "text",
    [
        b"a 5",
        b"a\n",
        b"a5\n",
        b"a 0x5\n",
        b"a 5_0\n",
        b"a 5 6 7\n",
        b"5a 5\n",
        b'a{b="c} 5\n',
        b'a{b="c"\n',
        b"a{b=c} 5\n",
        b'a{b="c",b="d"} 5\n',
        b'a{b="\\x"} 5\n',
        b'a{b="c"} 5} 6\n',
        b"<html>\n",
        b"a 5\nother{ 5\n",
        b"a " + b" " * MAX_LINE_BYTES + b"5\n",
    ],
)
def test_what_is_not_of_the_format_is_refused_as_a_whole(text: bytes) -> None:
    with pytest.raises(NotPrometheus):
        list(metric_samples(text, {b"a"}))


@pytest.mark.parametrize(
    ("vhost", "name", "shown"),
    [
        (b"/", b"orders", "orders"),
        (b"eu", b"orders", "eu/orders"),
        (b"/", b"eu/orders", "%2F/eu/orders"),
        (b"eu/west", b"a", "eu%2Fwest/a"),
        (b"eu%2Fwest", b"a", "eu%252Fwest/a"),
        (b"/", b"\xff", "\ufffd"),
    ],
)
def test_no_two_queues_have_one_destination(vhost: bytes, name: bytes, shown: str) -> None:
    assert text_of((vhost, name)) == shown


class Played:
    """The rows of one node that reports this at each second."""

    def __init__(self) -> None:
        self.node = RabbitQueues(RabbitUrl("127.0.0.1"))
        self.name, self.second = "rabbitmq node", 0
        self.text, self.fresh = "", False  # fresh: with new statistics of the queue at each second
        self.about_it: tuple[str, ...] = ()  # more lines
        self.judged = Judged("rabbitmq", self, lambda: self.second * S)

    def poll(self) -> list[Row]:
        self.node._read(self.text.encode(), self.second * S)
        return [*self.node._rows(self.second * S), *self.node._gone_rows(self.second * S)]

    def close(self) -> None:
        """Nothing is open."""

    def without_it(self, seconds: int, *lines: str, deletions: int = 1) -> list[list[tuple[object, object]]]:
        """Queues and their states at each second in which the node lists only another queue."""
        other = f'{D}queue_messages_ready{{vhost="/",queue="other"}} 0'
        self.text = "\n".join([other, f"{D}queues_deleted_total {deletions}", *lines, ""])
        found = []
        for _ in range(seconds):
            self.second += 1
            found.append([(row["destination"], row["status"]) for row in self.judged.poll()])
        return found

    def second_of(self, ready: int, unacked: int = 0, consumers: int = 1, **channels: tuple[int, int, int, int]) -> Row:
        """channels: published, delivered, acknowledged, redelivered, of the channels that are open."""
        at = '{vhost="/",queue="q"}'
        lines = [
            f"{D}queue_messages_ready{at} {ready}",
            f"{D}queue_messages_unacked{at} {unacked}",
            f"{D}queue_consumers{at} {consumers}",
            *self.about_it,
            *((f"{D}queue_process_reductions_total{at} {self.second + 1}",) if self.fresh else ()),
        ]
        for channel, (published, delivered, acked, redelivered) in channels.items():
            labels = f'{{channel="{channel}",vhost="/",queue="q"}}'
            lines.append(
                f'{D}queue_messages_published_total{{channel="{channel}",queue_vhost="/",queue="q"}} {published}'
            )
            lines.append(f"{D}channel_messages_delivered_ack_total{labels} {delivered}")
            lines.append(f"{D}channel_messages_acked_total{labels} {acked}")
            lines.append(f"{D}channel_messages_redelivered_total{labels} {redelivered}")
        self.text = "\n".join([*lines, ""])
        self.second += 1
        (row,) = self.judged.poll()
        return row


def test_a_queue_whose_name_breaks_a_line_costs_no_other() -> None:
    node = RabbitQueues(RabbitUrl("127.0.0.1"))
    good = f'rabbitmq_identity_info{{rabbitmq_cluster="shop"}} 1\n{D}queue_messages_ready{{vhost="/",queue="a"}} 7\n'
    bad = [f'{D}queue_messages_ready{{vhost="/",queue="{name}"}} 9\n' for name in ('"', '","', 'a",x="', "a\\", "\\q")]
    _, problems = node._read((good + "".join(bad)).encode(), S)
    assert [(queue.name, queue.gauges["queue_messages_ready"]) for queue in node._queues.values()] == [(b"a", 7)]
    assert len(problems) == 1
    with pytest.raises(NotPrometheus):
        RabbitQueues(RabbitUrl("127.0.0.1"))._read(b"<html>\n", S)


def test_rates_of_channels_that_come_and_go() -> None:
    node = Played()
    node.second_of(0, a=(1000, 0, 0, 0), b=(0, 900, 900, 3))
    row = node.second_of(0, a=(1007, 0, 0, 0), b=(0, 905, 903, 3))
    assert (row["in_per_s"], row["out_per_s"], row["redelivered"]) == (7.0, 3.0, 0)
    row = node.second_of(0, a=(1007, 0, 0, 0), c=(2, 11, 0, 11))  # b ended, c is new
    assert (row["in_per_s"], row["out_per_s"], row["redelivered"]) == (2.0, 0.0, 11)
    row = node.second_of(0, a=(5, 0, 0, 0), c=(2, 11, 11, 11))  # another channel has the name of a
    assert (row["in_per_s"], row["out_per_s"]) == (5.0, 11.0)


def test_arrivals_that_no_channel_published_make_the_rate_unknown() -> None:
    node = Played()
    for second in range(10):
        row = node.second_of(100 * second, a=(1000 + 10 * second, 0, 0, 0))
    assert row["in_per_s"] != row["in_per_s"]
    assert row.get("lag_s") is None


@pytest.mark.parametrize(
    ("arguments", "known"),
    [
        (None, False),  # without the management API
        ({"x-max-length": 13, "x-overflow": "reject-publish"}, False),
        ({"x-max-length": 13, "x-overflow": "reject-publish-dlx"}, False),
        ({"x-max-length": 13}, True),
        ({"x-max-length": 13, "x-max-priority": 9}, False),
    ],
)
def test_the_age_in_a_queue_that_is_full(arguments: dict[str, Any] | None, known: bool) -> None:
    """Ten messages a second are published: those that wait are the last ones only if the queue drops the oldest."""
    node = Played()
    node.fresh = True
    if arguments is not None:
        node.node._management = management = Management(HttpClient("127.0.0.1", 1), False)
        management.queues = about_queues([{"vhost": "/", "name": "q", "type": "classic", "arguments": arguments}])
    for second in range(30):
        row = node.second_of(min(13, 10 * second), a=(10 * second, 0, 0, 0))
    assert (row["lag_messages"], row["exact"], row.get("lag_at_least")) == (13, False, None)
    if known:
        assert row.get("lag_s") is None  # channels do not count what the queue drops
        assert row["in_per_s"] == 10
    else:
        assert row.get("lag_s") is None
        assert "age: 1.0 s or more" in row["inexact_reason"]  # 1.2 s
        assert row["oldest_undelivered_s"] == pytest.approx(1.0)
        assert isnan(row["in_per_s"]) == ("x-max-priority" not in (arguments or {}))
    for _ in range(3):  # it is emptied
        node.second_of(0, a=(290, 13, 13, 0))
    for second in range(5):
        row = node.second_of(second, a=(290 + second, 13, 13, 0))
    if "x-max-priority" not in (arguments or {}):
        assert row["lag_at_least"] <= 4 <= row["lag_messages"]
        assert row["lag_s"] == pytest.approx(3, abs=row["lag_error_s"])


def test_old_statistics_make_no_message_older_than_it_is() -> None:
    """Ready messages of the last statistics may have been delivered since."""
    node = Played()
    node.fresh = True
    for second in range(20):
        node.second_of(0, a=(10 * second, 10 * second, 10 * second, 0))
    node.second_of(5, a=(200, 195, 195, 0))
    node.fresh = False
    for _ in range(5):
        row = node.second_of(5, a=(200, 200, 200, 0))
        assert (row["lag_at_least"], row["oldest_undelivered_s"]) == (0, 0.0)
    node.fresh = True
    rows = [node.second_of(0, a=(200, 200, 200, 0)) for _ in range(3)]
    assert (rows[-1]["lag_messages"], rows[-1]["lag_at_least"], rows[-1]["lag_s"]) == (0, 0, 0.0)


def test_messages_that_are_given_back_again_and_again_are_not_read() -> None:
    """A consumer gives its five messages back, a hundred times a second, while ten a second arrive."""
    node = Played()
    node.fresh = True
    for second in range(30):
        row = node.second_of(10 * second, 5, a=(10 * second + 5, 5 + 100 * second, 0, 100 * second))
    assert row["status"] == "stalled"
    node.fresh = False
    for n in range(5):
        row = node.second_of(290, 5, a=(295, 2905 + 100 * n, 0, 2900 + 100 * n))
        assert row["lag_at_least"] <= 290 <= row["lag_messages"]
        assert 25 + n < row["oldest_undelivered_s"] <= 29.9 + n
    # After a restart of the server, all messages count as delivered again.
    for n in range(5):
        row = node.second_of(290, 5, a=(295, 3400 + 100 * n, 100 * n, 3395 + 100 * n))
    assert (row.get("lag_at_least"), row.get("lag_s")) == (None, None)


@pytest.mark.parametrize("clustered", [False, True])
@pytest.mark.parametrize("elsewhere", [None, False, True])  # None: without the management API
def test_a_queue_that_is_no_longer_listed(clustered: bool, elsewhere: bool | None) -> None:
    node = Played()
    if elsewhere is not None:
        node.node._management = management = Management(HttpClient("127.0.0.1", 1), False)
        names = ("other", "q") if elsewhere else ("other",)
        management.queues = about_queues([{"vhost": "/", "name": name, "type": "quorum"} for name in names])
        management.vhosts = {b"/"}
    node.node._read_node(b'erlang_vm_dist_node_state{peer="rabbitmqcli-1-a@b"} 3\n')  # rabbitmqctl
    if clustered:
        node.node._read_node(b'erlang_vm_dist_node_state{peer="rabbit@b"} 3\n')
    for _ in range(3):
        node.second_of(7)
    late = node.without_it(15)
    assert late[5] == [(b"other", "ok")]  # its statistics may be late
    gone = not elsewhere if elsewhere is not None else not clustered
    assert late[-1] == [(b"other", "ok"), *([(b"q", "gone")] if gone else [])]
    assert node.second_of(7)["status"] == "ok"


@pytest.mark.parametrize(
    "why",
    [
        *(
            "deleted",
            "deleted during an answer",
            "deleted after one answer",
            "its virtual host stopped",
            "another leader",
        ),
        *("restarted", "erlang_uptime_seconds", "channels_closed_total", "queues_deleted_total"),
    ],
)
def test_a_queue_without_statistics_may_still_exist(why: str) -> None:
    """A node that starts, or a virtual host that fails, lists no queue before it has recovered and has statistics.
    Only the node's own count of deletions, of the time in which it was up, shows that a queue was deleted.
    """
    node = Played()
    count = 5 if why == "queues_deleted_total" else 0
    for second in range(1 if why == "deleted after one answer" else 3):
        node.about_it = (
            f"{D}queues_deleted_total {count}",
            f"{D}erlang_uptime_seconds 7.5",
            f"{D}channels_closed_total 7",
        )
        if why == "deleted during an answer" and second == 2:
            node.about_it = (f"{D}queues_deleted_total 1",)
        node.second_of(7)
    if why == "restarted":
        node.node._unanswered = 1 << 20
        node.node._down("refused")
    lines = ['rabbitmq_cluster_vhost_status{vhost="/"} 0'] if why == "its virtual host stopped" else []
    if why in ("erlang_uptime_seconds", "channels_closed_total"):  # restarted between two polls
        lines = [f"{D}{why} 4"]
    if why == "queues_deleted_total":
        node.without_it(1, deletions=0)
    late = node.without_it(15, *lines, deletions=0 if why == "another leader" else 6 if count else 1)
    assert late[-1] == [(b"other", "ok"), *([(b"q", "gone")] if why.startswith("deleted") else [])]
    node.about_it = ()
    assert node.second_of(7)["status"] == "ok"


@pytest.mark.parametrize("others", [("other",), ()])
@pytest.mark.parametrize("before_s", [0, 3])  # from its deletion to the outage
def test_the_api_of_a_node_that_has_started_decides_once_it_answers(others: tuple[str, ...], before_s: int) -> None:
    """The node has lost its data: it has counted no deletion."""
    node = Played()
    node.node._management = management = Management(HttpClient("127.0.0.1", 1), False)
    management._client = api = Canned({})  # type: ignore[assignment]

    def lists(*names: str) -> None:
        api.answers["/api/queues"] = json.dumps([{"vhost": "/", "name": name} for name in names]).encode()
        management._next_ns, management._consumers_next = 0, False
        management.ask(S, inf, None)

    lists(*others, "q")
    for _ in range(3):
        node.second_of(7)
    node.without_it(before_s)
    node.node._unanswered = 1 << 20
    node.node._down("refused")
    management._problems[False] = "Connection refused"
    assert node.without_it(15, deletions=0)[-1] == [(b"other", "ok")]
    lists(*others)
    hidden = not others  # the API shows none of this virtual host, of which the node lists one
    assert node.without_it(2, deletions=0)[-1] == [(b"other", "ok"), *([] if hidden else [(b"q", "gone")])]


def test_a_node_that_is_down_says_nothing_of_a_queue_that_another_one_leads() -> None:
    down, leader = Played(), Played()
    for node in (down, leader):
        node.node._identity = "c"
        node.second = boot_ns() // S - 1
    down.second_of(7)
    assert [row.get("destination") for row in down.node._down("refused")] == [b"q"]
    leader.second_of(3)
    assert [row.get("destination") for row in down.node._down("refused")] == [None]


def page(cluster: str, *lines: str, its_id: str = "") -> bytes:
    """What a node of a cluster answers."""
    labels = f'rabbitmq_cluster="{cluster}",rabbitmq_cluster_permanent_id="{its_id}"'
    return "\n".join([f"rabbitmq_identity_info{{{labels}}} 1", *lines, ""]).encode()


@pytest.mark.parametrize("ids", ["xx", "xy"])
def test_two_clusters_with_one_name_are_not_added_up(ids: str) -> None:
    """As of brokers in containers whose host has one name: rabbit@rabbit."""
    nodes = [RabbitQueues(RabbitUrl.parse(f"http://{host}")) for host in "ab"]
    at = '{vhost="/",queue="q"}'
    try:
        for second in range(1, 4):
            for node, its_id in zip(nodes, ids, strict=True):
                lines = f"{D}queue_messages_ready{at} 0", f"{D}queue_messages_published_total{at} {5 * second}"
                node._read(page("rabbit@rabbit", *lines, its_id=its_id), second * S)
        (queue,) = nodes[1]._queues.values()
        assert queue.totals.published == (20 if ids == "xx" else 10)
    finally:
        for node in nodes:
            node.close()


def test_a_node_that_leaves_its_cluster_takes_back_no_deliveries() -> None:
    nodes = [RabbitQueues(RabbitUrl.parse(f"http://{host}")) for host in "ab"]
    at = 'vhost="/",queue="q"'
    ready = f"{D}queue_messages_ready{{{at}}} 7"
    try:
        nodes[0]._read(page("c", ready), 0)
        for second, again in ((1, 5), (2, 16)):
            nodes[1]._read(page("c", f'{D}channel_messages_redelivered_total{{channel="x",{at}}} {again}'), second * S)
            nodes[0]._read(page("c", ready), second * S)
        (queue,) = nodes[0]._queues.values()
        assert queue.totals.redelivered == 11
        nodes[1]._read(page("another"), 3 * S)
        nodes[0]._read(page("c", ready), 3 * S)
        assert (queue.totals.redelivered, queue.redelivered) == (0, 0)
    finally:
        for node in nodes:
            node.close()


def test_a_queue_of_the_setting_that_another_node_leads_is_missing_at_no_other_node() -> None:
    """Rows of one queue and one cluster replace each other, so the leader's must be the only one."""
    nodes = [RabbitQueues(RabbitUrl.parse(f"http://{host}?queues=orders,none")) for host in "ab"]
    try:
        for node, lines in zip(nodes, ([f'{D}queue_messages_ready{{vhost="/",queue="orders"}} 7'], []), strict=True):
            node._read(page("named", *lines), S)
        assert [[name for name, _ in node._missing()] for node in nodes] == [[b"none"], [b"none"]]
        nodes[0]._read(page("named"), 2 * S)
        assert [name for name, _ in nodes[1]._missing()] == [b"orders", b"none"]
    finally:
        for node in nodes:
            node.close()


def test_the_lag_of_a_stream_is_that_of_consumers_at_any_node() -> None:
    """A node reports only the consumers that are connected to it, whichever node leads the stream."""
    leader, replica = (RabbitQueues(RabbitUrl.parse(f"http://{host}")) for host in "ab")
    at = 'vhost="/",queue="events"'
    its = [
        f'{D}queue_info{{{at},queue_type="rabbit_stream_queue",membership="leader"}} 1',
        f"{D}queue_messages_ready{{{at}}} 5000",
    ]

    def lag() -> tuple[object, object]:
        leader._read(page("streams", *its), S)
        (row,) = leader._rows(S)
        return row["lag_messages"], row["exact"]

    try:
        assert lag() == (None, None)
        replica._read(page("streams", f"{D}stream_consumer_max_offset_lag{{{at}}} 700"), S)
        its.append(f"{D}stream_consumer_max_offset_lag{{{at}}} 3")
        assert lag() == (700, False)
        replica._down("refused")
        assert lag() == (3, False)
    finally:
        leader.close()
        replica.close()


@pytest.mark.parametrize(("consumers", "status", "waits", "delayed"), [(1, "stopped", 5, None), (0, "ok", 0, 5)])
def test_a_queue_that_has_lost_its_consumers_is_no_delay_queue(
    consumers: int, status: str, waits: int, delayed: int | None
) -> None:
    """Messages that are not taken in time are dead-lettered from both."""
    node = Played()
    node.node._management = management = Management(HttpClient("127.0.0.1", 1), False)
    arguments = {"x-message-ttl": 600_000, "x-dead-letter-exchange": ""}
    management.queues = about_queues([{"vhost": "/", "name": "q", "type": "classic", "arguments": arguments}])
    node.second_of(0, consumers=consumers, a=(0, 0, 0, 0))
    for _ in range(15):
        row = node.second_of(5, consumers=0, a=(5, 0, 0, 0))
    assert (row["status"], row["lag_messages"], row.get("delayed")) == (status, waits, delayed)
    (queue,) = node.node._queues.values()
    (timer,) = node.node._due(queue, management)
    assert timer.kind == ("eta" if delayed else "ttl")
    node.node._unanswered = 1 << 20
    node.node._down("refused")  # what is known of it outlasts the node, which may list it late
    for listed in (node.node._queues, {}):
        node.node._queues = listed
        row = node.second_of(5, consumers=0, a=(5, 0, 0, 0))
        assert (row["lag_messages"], row.get("delayed")) == (waits, delayed)


class PerObject(Canned):
    """A node with so many objects that its metrics of all of them come too late. asked: how often."""

    asked = 0

    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        if path == "/metrics":
            self.asked += 1
            raise HttpDown("no answer in time", "no_answer")
        return super().get(path, *given, **more)


def test_alarms_are_unknown_while_their_metrics_cannot_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ns = 10 * S
    monkeypatch.setattr(rabbitmq, "boot_ns", lambda: now_ns)
    ready = f'{D}queue_messages_ready{{vhost="/",queue="q"}} 7'
    answers = PerObject({"/metrics/detailed": page("alone", ready)})
    node = RabbitQueues(RabbitUrl("127.0.0.1"))
    node._client = answers  # type: ignore[assignment]
    try:
        for _ in range(120):
            queue, problem = node.poll()
            now_ns += S
        assert (queue["lag_messages"], queue["errors"], queue.get("lag_at_least")) == (7, None, None)
        assert "other nodes may count" in str(queue["inexact_reason"])
        assert str(problem["reason"]).startswith("alarms are unknown: /metrics: no answer in time")
        assert answers.asked < 12  # less and less often
    finally:
        node.close()


def test_a_virtual_host_is_hidden_only_if_it_was_there_when_the_api_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API is asked for queues every 5 s; the first queue of a virtual host may be newer."""
    now_ns = 10 * S
    monkeypatch.setattr(rabbitmq, "boot_ns", lambda: now_ns)
    node = RabbitQueues(RabbitUrl.parse("http://127.0.0.1?management=1&amqp=2"))
    metrics = Canned({"/metrics/detailed": b"", "/metrics": b"rabbitmq_connections 0\n"})
    api = Canned({"/api/queues": b"", "/api/consumers": b"[]"})
    assert node._management is not None
    node._client, node._management._client = metrics, api  # type: ignore[assignment]

    def hidden(there: list[str], shown: list[str]) -> bool:
        nonlocal now_ns
        lines = [f'{D}queue_messages_ready{{vhost="{vhost}",queue="q"}} 7' for vhost in there]
        metrics.answers["/metrics/detailed"] = page("alone", *lines)
        api.answers["/api/queues"] = json.dumps([{"vhost": vhost, "name": "q"} for vhost in shown]).encode()
        rows = node.poll()
        now_ns += S
        return any("no permission for virtual host" in str(row.get("reason")) for row in rows)

    try:
        assert not hidden(["a"], ["a"])
        assert not any(hidden(["a", "b"], ["a", "b"]) for _ in range(12))
        assert any(hidden(["a", "b", "c"], ["a", "b"]) for _ in range(12))
    finally:
        node.close()


def test_nothing_is_kept_of_clusters_and_queues_that_a_server_names_anew_at_each_poll() -> None:
    """A cluster's name, and its queues', come from the server."""
    node, leaders = RabbitQueues(RabbitUrl("127.0.0.1")), Leaders()
    for n in range(50):
        node._read(b'rabbitmq_identity_info{rabbitmq_cluster="c%d"} 1\n' % n, n * S)
        leaders.lead(f"c{n}", [(b"queue %d" % n,)], node, n * S)
    assert [cluster for cluster, nodes in rabbitmq._NODES.items() if node in nodes] == ["c49"]
    assert len(leaders._last) == 3
    assert leaders.elsewhere("c49", (b"queue 49",), None, 50 * S)
    node.close()
    assert "c49" not in rabbitmq._NODES


def _consumer(queue: str, channel: str, port: int, prefetch: int, ack: bool = True) -> dict[str, object]:
    details = {"name": channel, "peer_host": "10.0.0.1", "peer_port": port}
    return {
        "queue": {"vhost": "/", "name": queue},
        "channel_details": details,
        "prefetch_count": prefetch,
        "ack_required": ack,
    }


@pytest.mark.parametrize(
    ("consumers", "addresses", "limit"),
    [
        ([_consumer("q", "a (1)", 1, 3), _consumer("q", "b (1)", 2, 4)], ["10.0.0.1:1", "10.0.0.1:2"], 7),
        ([_consumer("q", "a (1)", 1, 3), _consumer("q", "b (1)", 2, 0)], ["10.0.0.1:1", "10.0.0.1:2"], None),
        ([_consumer("q", "shared", 1, 0), _consumer("q", "shared", 1, 0)], ["10.0.0.1:1"], 5),
        ([_consumer("q", "shared", 1, 0), _consumer("q", "b (1)", 2, 4)], ["10.0.0.1:1", "10.0.0.1:2"], 9),
        ([_consumer("q", "a (1)", 1, 3, ack=False)], ["10.0.0.1:1"], None),
        ([{"queue": {"vhost": "/", "name": "q"}}], [], None),
        (
            [_consumer("q", "a (1)", 1, 3), {**_consumer("q", "b (1)", 2, 0), "activity_status": "waiting"}],
            ["10.0.0.1:1", "10.0.0.1:2"],
            3,
        ),
    ],
    ids=[
        "each its own",
        "one without a limit",
        "of the channel, once",
        "of both kinds",
        "no acknowledgement",
        "nothing",
        "one that is active, and one that waits for its end",
    ],
)
def test_consumers_of_a_queue_and_how_much_they_may_hold(
    consumers: list[dict[str, object]], addresses: list[str], limit: int | None
) -> None:
    channels = [{"name": "shared", "global_prefetch_count": 5}, {"name": "b (1)", "global_prefetch_count": 0}, None]
    its = queue_consumers(consumers, channels)[b"/", b"q"]
    assert (its.addresses, its.limit) == (addresses, limit)


def test_a_limit_of_a_channel_is_for_all_of_its_queues() -> None:
    """As of a worker of Celery with several queues. Who holds the messages of `other` is not known."""
    node = RabbitQueues(RabbitUrl("127.0.0.1"))
    node._management = management = Management(HttpClient("127.0.0.1", 1), False)
    of = {"a": ("shared",), "b": ("shared",), "own": ("c (1)",), "other": ("shared", "c (1)")}
    its = [_consumer(queue, channel, 1, 4 if queue == "own" else 0) for queue, on in of.items() for channel in on]
    channels = [{"name": "shared", "global_prefetch_count": 5}, {"name": "c (1)", "global_prefetch_count": 3}]
    management.consumers = queue_consumers(its, channels)
    figures = {"ready": 7, "unacked": 2}
    lines = [f'{D}queue_messages_{name}{{vhost="/",queue="{q}"}} {n}' for q in of for name, n in figures.items()]
    lines += [f'{D}queue_consumers{{vhost="/",queue="{queue}"}} 1' for queue in of]
    node._read("\n".join([*lines, ""]).encode(), S)
    rows = {queue.name.decode(): row for queue, row in zip(node._queues.values(), node._rows(S), strict=True)}
    assert {name: (row["prefetch"], row.get("beside")) for name, row in rows.items()} == {
        "a": (5, 2),
        "b": (5, 2),
        "own": (4, None),
        "other": (8, 6),
    }


def test_the_port_is_that_of_the_node_that_answers() -> None:
    listeners = [{"node": node, "protocol": "amqp", "port": port} for node, port in (("a", 5673), ("b", 5672))]
    assert [amqp_port({"node": node, "listeners": listeners}) for node in "ab"] == [5673, 5672]


class Looked(dict[Any, Any]):
    """looks: how often it was asked for a value."""

    looks = 0

    def get(self, *given: Any) -> Any:
        self.looks += 1
        return super().get(*given)

    def __getitem__(self, key: Any) -> Any:
        self.looks += 1
        return super().__getitem__(key)


@pytest.mark.parametrize("alike", [False, True])
def test_no_queue_is_compared_with_all_others(alike: bool) -> None:
    """A worker reads all queues, and another one each of them, or the same two read all."""
    node, names = RabbitQueues(RabbitUrl("127.0.0.1")), [f"q{n}" for n in range(rabbitmq.MAX_QUEUES)]
    node._management = management = Management(HttpClient("127.0.0.1", 1), False)
    its = [_consumer(name, channel, 1, 0) for name in names for channel in ("all", "one" if alike else name)]
    channels = [{"name": name, "global_prefetch_count": 5} for name in ("all", "one", *names)]
    management.consumers = consumers = Looked(queue_consumers(its, channels))
    assert {len(one.within) for one in consumers.values()} == {1}
    kinds = "messages_ready", "messages_unacked", "consumers"
    lines = [f'{D}queue_{kind}{{vhost="/",queue="{name}"}} 1' for name in names for kind in kinds]
    node._read("\n".join([*lines, ""]).encode(), S)
    assert {row["beside"] for row in node._rows(S)} == {len(names) - 1 if alike else 0}
    assert consumers.looks <= 2 * len(names)


def test_of_a_queue_with_too_many_channels_it_is_not_known_what_they_hold() -> None:
    its = [_consumer("q", str(n), 1, 0) for n in range(1025)] + [_consumer("few", "7", 1, 0)]
    found = queue_consumers(its, [{"name": "7", "global_prefetch_count": 5}])
    assert [(len(one.channels), one.within) for one in found.values()] == [(0, []), (1, [frozenset("7")])]
    each = queue_consumers([_consumer(str(n), str(n), 1, 0) for n in range(1025)], [])
    assert {(len(one.channels), len(one.within)) for one in each.values()} == {(0, 0)}


@pytest.mark.parametrize("given", [None, {}, [7], [{"queue": 7}], [{"queue": {"vhost": "/"}}]])
def test_what_are_no_consumers_is_refused(given: Any) -> None:
    with pytest.raises(TypeError):
        unlimited(given)
        queue_consumers(given, [])
