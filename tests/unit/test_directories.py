"""A store whose files have other owners: what is ours is taken over, links and what is not are left alone."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from agent.batch import make
from agent.clock.last import LastReading
from agent.common import ownfiles
from agent.correlate.correlator import Correlator
from agent.errors import AgentError
from agent.posix.directories import prepare
from agent.service.hours_store import HoursStore
from agent.store import seal
from agent.store.hot import HotStore
from agent.store.retention import Retention

ROOT = Path(__file__).resolve().parents[2]
OLD, NEW = 54_321, 54_322
BOOT = "0f0f0f0f-0000-4000-8000-000000000001"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Everything that an agent leaves in a store, of an owner that is gone."""
    place = tmp_path / "store"
    for _ in range(2):
        hot = HotStore(place, BOOT, "host", seal_command=())
        hot.append([make("tcp_reset", 3, t_ns=5)], tick_ns=6)
        hot.close()
    fd = os.open(place, os.O_RDONLY)
    LastReading(fd, BOOT)
    HoursStore(Correlator(), fd, BOOT).close()
    os.close(fd)
    monkeypatch.chdir(place)
    seal.seal_all(2, Retention(1 << 30, 1e9))
    (place / ownfiles.SEAL_LOCK).touch()
    (place / "sealed-00000001" / "tcp_reset.cells").touch()  # of a table with many rows
    shutil.copytree(place / "sealed-00000001", place / "seal-00000009.tmp")
    for path in (place, *place.rglob("*")):
        os.chown(path, OLD, OLD)
    return place


def owners(place: Path) -> set[int]:
    return {path.lstat().st_uid for path in (place, *place.rglob("*"))}


def test_every_socket_of_the_run_directory_is_known() -> None:
    paths = (path.relative_to(ROOT) for path in (ROOT / "agent").rglob("*.py"))
    sources = [ROOT / path for path in paths if not {"demo", "lab", "receiver"} & set(path.parts)]
    named = {name for source in sources for name in re.findall(r'"([\w.]+\.sock)"', source.read_text())}
    assert len(named) > 4
    assert all(map(ownfiles.is_own, named))


def test_a_store_of_a_user_that_was_made_anew_is_taken_over_whole(store: Path) -> None:
    names = {path.name for path in store.iterdir()}
    assert names >= ownfiles.STORE | {"hot-00000002.tsl", "sealed-00000001", "seal-00000009.tmp"}
    assert all(map(ownfiles.is_own, names))
    os.close(prepare(str(store), 0o750, NEW, NEW))
    assert owners(store) == {NEW}


def test_so_are_files_that_were_restored_into_a_directory_of_the_right_owner(store: Path) -> None:
    os.chown(store, NEW, NEW)
    os.close(prepare(str(store), 0o750, NEW, NEW))
    assert owners(store) == {NEW}


def test_what_was_interrupted_is_completed(store: Path) -> None:
    os.close(prepare(str(store), 0o750, NEW, NEW))
    for path in ("sealed-00000001", "sealed-00000001/head.json"):
        os.chown(store / path, OLD, OLD)
    os.close(prepare(str(store), 0o750, NEW, NEW))
    assert owners(store) == {NEW}


def test_links_and_what_has_another_name_too_are_left_alone(store: Path, tmp_path: Path) -> None:
    secret = tmp_path / "shadow"
    secret.write_text("root's")
    (store / "hot-00000007.tsl").symlink_to(secret)
    os.link(secret, store / "hot-00000008.tsl")
    (store / "sealed-00000005").symlink_to(tmp_path)
    (store / "sealed-00000001" / "tcp_rtt.parquet").symlink_to(secret)
    os.close(prepare(str(store), 0o750, NEW, NEW))
    assert secret.stat().st_uid == tmp_path.stat().st_uid == 0


def test_a_directory_of_others_is_refused_and_nothing_in_it_changes(store: Path) -> None:
    (store / "postgresql").mkdir()
    os.chown(store / "postgresql", OLD, OLD)
    with pytest.raises(AgentError, match="not tickscope's"):
        prepare(str(store), 0o750, NEW, NEW)
    assert owners(store) == {OLD}
