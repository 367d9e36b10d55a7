"""Files that register what they declare: a wrong declaration is an error that names the file and what is wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from agent.common.declared import all_declared
from agent.errors import AgentError
from agent.queues.catalogue import Broker

RIGHT = """from agent.queues.catalogue import Broker
BROKER = Broker("two", "Two", "files", "/two", "", str, open)
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "some_kinds").mkdir()
    (tmp_path / "some_kinds" / "__init__.py").touch()
    (tmp_path / "some_kinds" / "two.py").write_text(RIGHT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield import_module("some_kinds")
    for name in [name for name in sys.modules if name.startswith("some_kinds")]:
        del sys.modules[name]


def test_each_file_declares(package: ModuleType) -> None:
    (Path(package.__path__[0]) / "one.py").write_text(RIGHT.replace('"two"', '"one"'))
    assert [one.name for one in all_declared(package, "BROKER", Broker, named=True)] == ["one", "two"]


@pytest.mark.parametrize(
    ("text", "named", "message"),
    [
        ("", True, "one.py: it has no BROKER"),
        (RIGHT.replace("BROKER =", "BROKERS ="), True, "one.py: it has no BROKER"),
        (RIGHT.replace("Broker(", "dict("), True, "one.py:2: "),
        ("BROKER = 7\n", True, "one.py: its BROKER is no Broker"),
        (RIGHT, True, "one.py: BROKER has the name 'two'"),
        (RIGHT, False, "one.py and two.py both declare 'two'"),
        (RIGHT.replace("str, open", "parser=str"), True, "one.py:2: Broker.__init__() got an unexpected"),
        ("import nothing_of_this_name\n", True, "one.py:1: No module named"),
        ("BROKER = (\n", True, "one.py:1: "),
    ],
)
def test_a_wrong_declaration_names_its_file(package: ModuleType, text: str, named: bool, message: str) -> None:
    (Path(package.__path__[0]) / "one.py").write_text(text)
    with pytest.raises(AgentError) as error:
        all_declared(package, "BROKER", Broker, named=named)
    assert message in error.value.what


def test_an_optional_declaration_under_another_name(package: ModuleType) -> None:
    helper = Path(package.__path__[0]) / "helper.py"
    helper.write_text("NUMBER = 7\n")
    assert len(all_declared(package, "BROKER", Broker, optional=True)) == 1
    del sys.modules["some_kinds.helper"]
    helper.write_text(RIGHT.replace("BROKER =", "BROKERS = "))
    with pytest.raises(AgentError, match=r"helper\.py: it has no BROKER"):
        all_declared(package, "BROKER", Broker, optional=True)
