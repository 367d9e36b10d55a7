"""The sources of a mapping, and what is one sample of a page."""

from __future__ import annotations

import pytest

from agent.queues.mapping import MappedQueues, MetricSource, read


@pytest.mark.parametrize(
    "text",
    ['waits 5 # {x="1"}', 'waits{a="b"} 7 # {}', "waits 7 8 # {y}", "waits 5 # {}", "waits 5", "waits{", "", "{}"],
)
def test_what_follows_the_labels_of_a_metric_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a metric"):
        MetricSource.parse(text)


@pytest.mark.parametrize(
    ("text", "name", "labels"),
    [
        ("waits", b"waits", {}),
        ('waits{a="} 7 # {"}', b"waits", {b"a": b"} 7 # {"}),
        ('{"shop.waits",a="b"}', b"shop.waits", {b"a": b"b"}),
    ],
)
def test_a_metric_with_its_labels(text: str, name: bytes, labels: dict[bytes, bytes]) -> None:
    source = MetricSource.parse(text)
    assert (source.name, source.labels) == (name, labels)


def test_samples_with_the_same_labels_in_another_order_are_one() -> None:
    page = b'waits{queue="a",s="1"} 3\nwaits{ s="1",queue="a" } 5\nwaits{queue="a",s="2"} 100\n'
    (row,) = read([MappedQueues("{queue}", length=MetricSource.parse("waits"))], page, 1.7e9)
    assert row["lag_messages"] == 105
