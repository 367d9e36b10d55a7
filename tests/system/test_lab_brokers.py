"""Faults of brokers in the laboratory, with the real servers: the consumers are impacted, and the cause is found."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.lab.judge import cause_right, judge
from agent.lab.kind import kinds
from agent.lab.plan import one
from agent.lab.program import programs, with_systems
from agent.lab.programs import celery_queue, postgresql_queue, rabbitmq_queue
from agent.lab.replay import reported
from agent.lab.session import LabSession
from agent.lab.stage.stage import Stage
from agent.lab.truth import RECORDING
from tests.patience import PATIENCE
from tests.servers.kafka_server import fetched


@pytest.fixture(scope="module")
def kafka() -> Iterator[Path]:
    """A directory as that of Kafka's own archive. The laboratory's programs run as user nobody, and must read it."""
    with tempfile.TemporaryDirectory() as home:
        Path(home).chmod(0o755)
        (Path(home) / "libs").mkdir()
        fetched(Path(home) / "libs")
        yield Path(home)


@pytest.mark.timeout(600 * PATIENCE)
@pytest.mark.parametrize(
    ("system", "names"),
    [
        ("celery", ("celery_prefetch_full",)),
        ("celery", ("celery_poison",)),
        ("rabbitmq", ("rabbitmq_memory_alarm", "rabbitmq_ledger_slow")),
        ("kafka", ("kafka_rebalance_storm",)),
        ("postgresql", ("postgresql_network_loss", "postgresql_server_stopped")),
    ],
)
def test_faults_of_a_broker_have_an_impact_and_their_cause_is_found(
    system: str, names: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if system == "kafka":
        monkeypatch.setenv("KAFKA_HOME", str(request.getfixturevalue("kafka")))
    else:
        try:
            there = {"celery": celery_queue, "postgresql": postgresql_queue, "rabbitmq": rabbitmq_queue}
            there[system].available(tmp_path)
        except FileNotFoundError as error:
            pytest.skip(str(error))
    all_ = with_systems(programs(), {system})
    workload = {name: program for name, program in all_.items() if program.system or name == "link"}
    plan = [(one(kinds()[name], 4),) for name in names]
    truth = LabSession(plan, 4, tmp_path / "out", workload=workload, patience=PATIENCE).play()
    assert truth.left_out == []
    assert [fault.kind for fault in truth.faults if fault.victims] == [*names]
    verdicts, _ = judge(truth, reported(tmp_path / "out" / RECORDING))
    # Other processes of this host may be stopped and killed meanwhile, so it need not be the first finding.
    found = {v.fault.kind: any(cause_right(f.last, v.fault) for f in v.reported) for v in verdicts}
    assert found == dict.fromkeys(names, True), [
        (f.last["cause"], f.last["sentence"]) for v in verdicts for f in v.reported
    ]


def test_a_broker_that_is_not_installed_is_named_and_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_HOME", str(tmp_path))
    of_it = {name: program for name, program in programs().items() if program.system == "kafka"}
    with Stage(tmp_path / "out", of_it, 1) as stage:
        assert stage.programs == {}
        assert stage.notes == [
            f"kafka is left out: there is no Kafka in {tmp_path}/libs: set KAFKA_HOME to its directory"
        ]
