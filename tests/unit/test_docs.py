"""The documents: what is made from the code is current, links lead somewhere, and command lines are ones that the code
takes.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
import time
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agent.batch import make
from agent.cli.main import cli
from agent.common.host import boot_id as this_boot
from agent.config import read_file
from agent.config_example import example, schema_text
from agent.correlate.catalogue import causes, symptoms
from agent.limiters import decision
from agent.store.hot import HotStore
from agent.tables import TABLES
from tests.docs import ROOT, SCHEMA, SETTINGS, VALUES, made, pages
from tests.docs.__main__ import BLOCK, current, with_settings
from tests.docs.lines import arguments, programs, written
from tests.docs.pictures import PICTURES, drawn
from tests.docs.session import BLOCK as RAN
from tests.unit.correlate_scenarios import broker_slow, run

PAGES = {str(page.relative_to(ROOT)): page.read_text() for page in [*pages(), *ROOT.glob("tests/*/README.md")]}
LINES = sorted({(name, line) for name, text in PAGES.items() for line in written(text)})
#: Verbs that only read the store: they are run.
READING = ("clock history", "clock convert", "explain", "findings", "limiters", "query", "queues show", "sql", "tables")


def examples(page: str) -> list[str]:
    """The Python code of a page."""
    return [textwrap.dedent(found) for found in re.findall(r" *```python\n(.*?)```", PAGES[page], re.DOTALL)]


@pytest.mark.parametrize("page", PAGES)
def test_what_is_made_from_the_code_is_current(page: str) -> None:
    assert PAGES[page] == current(PAGES[page]), "run: python -m tests.docs"


def test_the_file_of_settings_is_made_of_the_declarations() -> None:
    assert SETTINGS.read_text() == example(), "run: python -m tests.docs"
    assert SCHEMA.read_text() == schema_text(), "run: python -m tests.docs"
    assert VALUES.read_text() == with_settings(VALUES.read_text()), "run: python -m tests.docs"


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_of_commands_are_current(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == drawn(PICTURES[name]), "run: python -m tests.docs"


def test_each_picture_is_on_a_page() -> None:
    shown = {found for text in PAGES.values() for found in re.findall(r"!\[[^]]+\]\((?:docs/)?([^)]+)\)", text)}
    assert shown == {file.name for file in (ROOT / "docs").iterdir() if file.suffix in (".svg", ".png")}


def test_everything_that_can_be_made_is_somewhere() -> None:
    assert sorted(found[2] for text in PAGES.values() for found in BLOCK.finditer(text)) == sorted(made.BLOCKS)


@cache
def words_of_the_code() -> set[str]:
    files = [f for f in ROOT.rglob("*") if f.suffix in (".py", ".c", ".h", ".sh", ".go")]
    return {word for f in files for word in re.findall(r"\w+", f"{f} {f.read_text()}")} | {*dir(builtins)}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "HACKING.md"])
def test_names_in_code_are_names_of_the_code(page: str) -> None:
    """But for those with NAME in them, which stand for the reader's own, and those that the examples define."""
    there = set(words_of_the_code())
    for node in (node for code in examples(page) for node in ast.walk(ast.parse(code))):
        match node:
            case ast.FunctionDef() | ast.ClassDef():
                there.add(node.name)
            case ast.Name(ctx=ast.Store()):
                there.add(node.id)
    prose = re.sub(r"```.*?```", "", PAGES[page], flags=re.DOTALL)
    code = re.sub(r"\w*NAME\w*|test_X|\w+\*", "", " ".join([*re.findall(r"`([^`]+)`", prose), *examples(page)]))
    code = re.sub(r"#.*|\"[^\"\n]*\"", "", code)
    assert sorted(set(re.findall(r"\b[A-Za-z_]\w+", code)) - there) == []


@pytest.mark.parametrize("code", [code for code in examples("HACKING.md") if code.startswith(("from ", "import "))])
def test_an_example_that_is_a_whole_file_runs(code: str) -> None:
    exec(compile(code, "HACKING.md", "exec"), {"__name__": "example"})


def headings(text: str) -> set[str]:
    """Anchors, as GitHub makes them of headings."""
    outside = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    }


@cache
def anchors(file: Path) -> set[str]:
    return headings(file.read_text())


def links() -> Iterator[tuple[str, str]]:
    for name, text in PAGES.items():
        outside = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.DOTALL)
        yield from ((name, target) for target in re.findall(r"\]\(([^)\s]+)\)", outside) if "://" not in target)


def test_links_lead_somewhere() -> None:
    def leads(page: str, target: str) -> bool:
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        return file.exists() and (not anchor or anchor in anchors(file))

    assert [link for link in sorted(set(links())) if not leads(*link)] == []


def test_pages_that_files_name_exist() -> None:
    """Settings, units and sources name pages as docs/PAGE.md, some with an anchor."""
    for folder in ("agent", "bpf", "dashboards", "deploy", "exporters"):
        for file in (ROOT / folder).rglob("*"):
            if file.suffix in {".py", ".c", ".h", ".yaml", ".service", ".json", ".sh"}:
                for page, anchor in re.findall(r"\bdocs/([\w-]+\.md)(?:#([\w-]+))?", file.read_text()):
                    assert f"docs/{page}" in PAGES, f"{file}: docs/{page}"
                    assert not anchor or anchor in headings(PAGES[f"docs/{page}"]), f"{file}: docs/{page}#{anchor}"


def test_every_page_is_reached_from_the_landing_page() -> None:
    reached, todo = {"README.md"}, ["README.md"]
    every = list(links())
    while todo:
        page = todo.pop()
        for target in {
            str(((ROOT / page).parent / t.partition("#")[0]).resolve().relative_to(ROOT)) for p, t in every if p == page
        } - reached:
            reached.add(target)
            todo += [target] if target in PAGES else []
    assert {name for name in PAGES if not name.startswith("tests/")} <= reached


@pytest.mark.parametrize(("page", "line"), LINES)
def test_command_lines_are_ones_that_it_takes(page: str, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verbs, options, their values and the number of arguments; nothing is done."""
    monkeypatch.setattr(click.Path, "convert", lambda _self, value, *_: value)  # files that a reader would have
    for words in programs(line):
        if words[0] == "python" and words[1] == "-m":
            assert find_spec(words[2]) is not None
    for given in arguments(line):
        parse(given)


def parse(given: list[str]) -> bool:
    """Whether it is whole: a verb that is only named, or one with a word that stands for something, is not. Raises
    click.UsageError.
    """
    command, context = cli, click.Context(cli, info_name="tickscope")
    while isinstance(command, click.Group):
        if not given or given[0].startswith("-") or given == ["VERB"]:
            return False
        name, found, given = command.resolve_command(context, given)
        assert found is not None
        command, context = found, click.Context(found, parent=context, info_name=name)
    if any(word.isupper() and word.isalpha() for word in given):
        return False
    try:
        command.make_context(command.name, [*given], parent=context.parent)
    except click.MissingParameter:
        return bool(given) and not {*given} <= {"--help", "-h"}
    except click.exceptions.Exit:  # --help
        return False
    return True


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A boot, and a later one with a finding and a row of each other table, all unknown but its time."""
    path = tmp_path_factory.mktemp("docs") / "store"
    before = HotStore(path, "00000000-0000-4000-8000-000000000000", "host", seal_command=())
    before.append([make("clock_offset", 1, t_ns=1, real_mono_ns=10**18, boot_mono_ns=0, err_ns=50)])
    before.close()
    hot = HotStore(path, this_boot(), "host", seal_command=())
    hot.append(
        [
            *run(broker_slow(), 60),
            *(make(name, 1, t_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME)) for name in TABLES if name != "finding"),
        ]
    )
    hot.close()
    return path


def reading() -> list[str]:
    found = {line: given for _, line in LINES for given in arguments(line) if " ".join(given).startswith(READING)}
    return sorted(
        line for line, given in found.items() if parse(given) and "--pid" not in given
    )  # a process of the reader's


@pytest.mark.parametrize("line", reading())
def test_what_reads_is_run(line: str, store: Path) -> None:
    """Its tables and columns exist. There is little to see: 3 is no rows, and AgentError's 3 a time that this store
    does not have.
    """
    for given in arguments(line):
        done = CliRunner().invoke(cli, [*given, "--store", str(store)], prog_name="tickscope", standalone_mode=False)
        assert getattr(done.exception, "exit_code", done.exit_code) in (0, 3), f"{done.output}{done.exception!r}"


@pytest.mark.parametrize("page", PAGES)
def test_settings_are_ones_that_it_takes(page: str, tmp_path: Path) -> None:
    for block in re.findall(r"```yaml\n(.*?)```", PAGES[page], re.DOTALL):
        file = tmp_path / "tickscope.yaml"
        file.write_text(block)
        read_file(file, required=True)


def test_every_member_of_a_reported_decision_is_reported() -> None:
    reported = {
        name
        for row in re.findall(r"^\| (.+?) \|", PAGES["docs/limiters-reference.md"], re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    }
    assert {
        "limiter",
        "result",
        "key",
        "unlimited",
        "t_ns",
        "dropped",
        *decision.FLOATS,
        *decision.INTEGERS,
        *decision.IDS,
        *decision.NAMES,
    } <= reported


def test_what_a_real_run_reported_is_there() -> None:
    blocks = [found[3] for text in PAGES.values() for found in RAN.finditer(text)]
    assert blocks
    for block in blocks:
        output = [line for line in block.splitlines() if line]
        assert len(output) > sum(line.startswith("$ ") for line in output), block


def test_the_page_that_explain_names_has_each_symptom_and_cause_with_its_next_step() -> None:
    page = PAGES["docs/symptoms-causes.md"]
    for what, all_of in (("cause", causes()), ("symptom", symptoms())):
        for name, one in all_of.items():
            (line,) = (line for line in page.splitlines() if f'<a id="{what}-{name}"></a>' in line)
            assert one.todo.replace("<", "\\<").replace(">", "\\>").replace("*", "\\*").replace("|", "\\|") in line
