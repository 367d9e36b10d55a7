"""What is made of a NATS server's report: times, bounds of ages, counts that cannot be, and what newer servers add."""

from __future__ import annotations

import copy
import json
from math import inf
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from agent.queues.brokers.nats import MAX_CONSUMERS, NatsConsumers, NatsUrl
from agent.queues.nats_ages import SeenSequences
from agent.queues.nats_report import NotNats, read_report, time_ns
from agent.queues.queue import Row
from tests.unit.parser_pieces import NATS_JSZ, NATS_VARZ, Canned

S = 1_000_000_000


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-26T14:29:47.546155223Z", 1795703387546155223),
        ("2026-11-26T14:29:47Z", 1795703387 * S),
        ("2026-11-26T15:29:47.5+01:00", 1795703387 * S + S // 2),
        ("2026-11-26T12:59:47-01:30", 1795703387 * S),
        ("0001-01-01T00:00:00Z", 0),
    ],
)
def test_times_as_go_writes_them(text: str, ns: int) -> None:
    assert time_ns(text) == ns


@pytest.mark.parametrize("text", ["", "now", "2026-13-26T14:29:47Z", "2026-02-29T14:29:47Z", "2026-11-26T24:00:00Z"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(NotNats):
        time_ns(text)


def report(**consumer: Any) -> dict[str, Any]:
    given = copy.deepcopy(NATS_JSZ)
    given["account_details"][0]["stream_detail"][0]["consumer_detail"][0] |= consumer
    return given


def rows(source: NatsConsumers, given: dict[str, Any]) -> list[Row]:
    source._client = Canned({"/varz": json.dumps(NATS_VARZ).encode(), "/jsz": json.dumps(given).encode()})  # type: ignore[assignment]
    return source.poll()


def row(**consumer: Any) -> Row:
    (found,) = rows(NatsConsumers(NatsUrl("127.0.0.1")), report(**consumer))
    return found


def test_an_age_that_is_not_known_closely_has_bounds() -> None:
    found = row()
    # The sixth of 17 messages of one minute; three of five are pending, and were delivered 7.5 s ago at the latest.
    assert found["oldest_undelivered_s"] == pytest.approx(0.146, abs=0.001)
    assert found["oldest_pending_s"] == pytest.approx(7.546, abs=0.001)
    assert found["inexact_reason"] == "age: 0.1 to 60.1 s; pending for 7.5 to 60.1 s"
    assert "lag_s" not in found and "retention_left_s" not in found
    assert (found["lag_messages"], found["exact"], found["pending"]) == (12, True, 3)


def test_a_history_bounds_the_ages_of_what_it_saw() -> None:
    seen = SeenSequences()
    seen.add(0, 0, 5)
    assert seen.age(5, 10 * S) == (9.95, inf, False)
    assert seen.age(6, 10 * S) == (0, inf, False)
    seen.add(2 * S, 2 * S, 9)
    for sequence in (6, 9):
        age = seen.age(sequence, 10 * S)
        assert age == (7.95, 10.05, True)
    seen.add(4 * S, 5 * S, 12)  # slow: when it was so is not known closely enough
    assert not seen.age(10, 10 * S).history
    seen.add(6 * S, 6 * S, 3)  # made anew
    assert seen.age(3, 10 * S) == (3.95, inf, False)


@pytest.mark.parametrize(
    ("consumer", "columns"),
    [
        ({"num_ack_pending": 0, "num_redelivered": 2}, {"redelivered": 0}),  # what was purged is still counted
        ({"num_redelivered": 5}, {"redelivered": None}),
        ({"config": {"deliver_subject": "a"}}, {"consumers": 0}),
        ({"config": {"deliver_subject": "a"}, "push_bound": True}, {"consumers": None}),
        ({"paused": True, "pause_remaining": 90 * S}, {"reason": "paused for another 90 s"}),
        (
            {"cluster": {"leader": ""}},
            {"lag_messages": None, "inexact_reason": "it has no leader, so its counts may be old"},
        ),
    ],
)
def test_what_a_consumer_says_of_itself(consumer: dict[str, Any], columns: dict[str, object]) -> None:
    found = row(**consumer)
    assert {name: found[name] for name in columns} == columns


@pytest.mark.parametrize(
    ("config", "room", "filtered"),
    [  # 17 messages of 100 bytes; the consumer was given 5
        ({}, None, None),
        ({"max_msgs": 20, "max_bytes": -1}, (12, 20, "deleted"), None),
        ({"max_msgs": 1000, "max_bytes": 2000}, (1200, 2000, "deleted"), None),
        ({"max_msgs": 20, "max_bytes": 2100}, (1260, 2100, "deleted"), None),  # of messages, but in the same unit
        ({"max_msgs": 20, "discard": "new"}, (17, 20, "stream full"), (17, 20, "stream full")),
        ({"max_msgs": 20, "retention": "workqueue"}, (17, 20, "deleted"), (17, 20, "deleted")),
        ({"max_msgs": 20, "retention": "interest"}, (12, 20, "deleted"), (17, 20, "deleted")),  # 5 are of slower ones
    ],
)
def test_how_full_a_stream_is(
    config: dict[str, Any], room: tuple[int, int, str] | None, filtered: tuple[int, int, str] | None
) -> None:
    given = report()
    (stream,) = given["account_details"][0]["stream_detail"]
    stream["config"] |= config
    stream["state"]["bytes"] = 1700
    assert rows(NatsConsumers(NatsUrl("127.0.0.1")), given)[0]["room"] == room
    stream["consumer_detail"][0]["config"]["filter_subject"] = "a"  # where it reads on is not known
    assert rows(NatsConsumers(NatsUrl("127.0.0.1")), given)[0]["room"] == filtered


def test_a_consumer_that_another_server_leads_is_left_to_it() -> None:
    assert row(cluster={"leader": "n2"})["status"] == "ok"
    assert "lag_messages" not in row(cluster={"leader": "n2"})


def test_a_count_above_what_the_stream_has_is_doubted_once_it_is_sure() -> None:
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    (first,) = rows(source, report(num_pending=40))  # a message may have come between the two numbers
    (second,) = rows(source, report(num_pending=40))
    assert first["exact"] is True
    assert (second["lag_messages"], second["exact"]) == (12, False)
    assert str(second["inexact_reason"]).startswith("upper bound: the server counts 40")


def test_an_impossible_port_of_clients_is_a_state() -> None:
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    source._client = Canned({"/varz": json.dumps(NATS_VARZ | {"port": 1 << 20}).encode()})  # type: ignore[assignment]
    (found,) = source.poll()
    assert "port is none" in str(found["reason"])


def test_a_report_of_another_form_is_refused_as_a_whole() -> None:
    wrong: Any
    for wrong in ({}, [], {"server_id": "A", "now": "x"}, report(num_pending=-1), report(delivered=None)):
        with pytest.raises(NotNats):
            read_report(json.dumps(wrong).encode())


class Limited(Canned):
    """Reports as many accounts as asked for; 1,024 without a limit, as the server does."""

    def get(self, path: str, *given: Any, **more: Any) -> bytes:
        answer = super().get(path, *given, **more)
        if not path.startswith("/jsz"):
            return answer
        limit = int(parse_qs(urlsplit(path).query).get("limit", ["1024"])[0])
        report = json.loads(answer)
        return json.dumps({**report, "account_details": report["account_details"][:limit]}).encode()


def test_all_of_many_accounts_are_read() -> None:
    given = report()
    (account,) = given["account_details"]
    given["account_details"] = [{**account, "name": f"A{n}"} for n in range(1031)]
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    answers = {"/varz": json.dumps(NATS_VARZ).encode(), "/jsz": json.dumps(given).encode()}
    source._client = Limited(answers)  # type: ignore[assignment]
    assert len({found["destination"] for found in source.poll()}) == 1031


@pytest.mark.parametrize("streams", [(), ("shop/ORD", "site/*")])
def test_the_name_of_an_accounts_stream_does_not_depend_on_other_accounts(streams: tuple[str, ...]) -> None:
    given = report()
    (account,) = given["account_details"]
    accounts = [{**account, "name": name, "id": its} for name, its in (("site", "site"), ("shop", "ACDEFGHIJKL"))]
    source = NatsConsumers(NatsUrl("127.0.0.1", streams=streams))
    names = [b"site/ORD", b"shop:ACDEFGHI/ORD"]
    for more in ([], [{**account, "name": "shop", "id": "ACZ"}]):
        given["account_details"] = accounts + more
        found = [rows(source, given) for _ in range(3)][-1]
        assert [one["destination"] for one in found] == names + [b"shop:ACZ/ORD"] * len(more)
        assert all(one["status"] == "ok" for one in found if "status" in one)


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_messages_that_no_consumer_is_to_get_have_a_row(retention: str) -> None:
    """Of 17 messages the first is of no consumer's subject; the consumer waits for 7 and has 3."""
    given = report(num_pending=7, num_ack_pending=3)
    (stream,) = given["account_details"][0]["stream_detail"]
    stream["config"]["retention"] = retention
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    assert len(rows(source, given)) == 1  # it may have been acknowledged a moment ago
    found = rows(source, given)[1]
    assert (found["destination"], found.get("consumer_group")) == (b"ORD", None)
    assert (found["lag_messages"], found["exact"], found["consumers"]) == (7, False, 0)
    assert "filters" in str(found["reason"])
    stream["consumer_detail"][0]["ack_floor"]["stream_seq"] = 0  # the consumer has it
    assert len(rows(source, given)) == 1
    assert len(rows(source, report(num_pending=7))) == 1  # a stream that keeps what was read


@pytest.mark.parametrize(("retention", "most"), [("workqueue", 3), ("interest", 10)])
def test_several_consumers_of_an_interest_stream_may_wait_for_the_same_messages(retention: str, most: int) -> None:
    given = report(num_pending=4, num_ack_pending=3)
    (stream,) = given["account_details"][0]["stream_detail"]
    stream["config"]["retention"] = retention
    stream["consumer_detail"].append({**stream["consumer_detail"][0], "name": "ship"})
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    found = [rows(source, given) for _ in range(2)][1][-1]
    assert (found["lag_messages"], found["lag_at_least"], found["exact"]) == (most, 3, False)


@pytest.mark.parametrize("without", ["stream", "consumer"])
def test_during_an_election_no_server_says_that_no_consumer_is_to_get_messages(without: str) -> None:
    given = report(num_pending=7, num_ack_pending=3)
    (stream,) = given["account_details"][0]["stream_detail"]
    stream["config"]["retention"] = "interest"
    (stream if without == "stream" else stream["consumer_detail"][0])["cluster"] = {}
    source = NatsConsumers(NatsUrl("127.0.0.1"))
    found = [rows(source, given) for _ in range(2)][-1]
    assert [one.get("consumer_group") for one in found] == [b"bill"]


def test_work_queues_without_consumers_count_towards_the_bound() -> None:
    given = report()
    (stream,) = given["account_details"][0]["stream_detail"]
    stream |= {"consumer_detail": [], "config": {"retention": "workqueue"}}
    given["account_details"][0]["stream_detail"] = [{**stream, "name": f"s{n}"} for n in range(MAX_CONSUMERS + 2)]
    found = rows(NatsConsumers(NatsUrl("127.0.0.1")), given)
    assert len(found) == MAX_CONSUMERS + 1
    assert str(found[-1]["reason"]).startswith("2 more than 2048")
