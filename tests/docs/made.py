"""The generated blocks of the documents, from the code: one function per block, with its name. Markdown; pure."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module

import click

from agent.common.settings import described, every
from agent.config_example import yaml_text
from agent.correlate import catalogue
from agent.queues.catalogue import brokers as known_brokers
from tests.docs import ROOT


def _cell(text: object) -> str:
    """Text in a cell of a Markdown table."""
    return re.sub(r"([|<>*])", r"\\\1", str(text).replace("\n", " ").strip()) or "-"


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Cells in backquotes stay as they are, but for what ends a cell."""

    def shown(cell: object) -> str:
        pieces = re.split(r"(`[^`]*`)", str(cell))
        return "".join(
            (
                p.replace("|", "\\|")
                if p.startswith("`")
                else _cell(p)
                if len(pieces) == 1
                else re.sub(r"([|<>*])", r"\\\1", p)
            )
            for p in pieces
        )

    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    return "\n".join(lines + [f"| {' | '.join(map(shown, row))} |" for row in rows]) + "\n"


def tables() -> str:
    from agent.columns import Column
    from agent.common.table import DERIVED, Table
    from agent.tables import TABLES
    from agent.tables.shared import PROC, SOCK

    def rows(columns: Iterable[Column]) -> list[tuple[str, ...]]:
        return [
            (f"`{c.name}`", _kind(c), c.unit or "-", c.meaning, f"`{c.attribute}`" if c.attribute else "-")
            for c in columns
        ]

    heads = ("column", "type", "unit", "meaning", "OTLP attribute")
    shared = {"PROC": PROC, "SOCK": SOCK}

    def one(table: Table) -> str:
        names = {c.name for c in table.columns}
        groups = [name for name, columns in shared.items() if {c.name for c in columns} <= names]
        left_out = {c.name for g in groups for c in shared[g]}
        own = [c for c in table.columns if c.name not in left_out and c.name != "t_ns"]
        also = f" Has {' and '.join(f'[{g}](#columns-that-many-tables-share)' for g in groups)} too." if groups else ""
        measure = f" `--group-by` and `--top` use `{table.measure}`." if table.measure else ""
        return f"### {table.name}\n\nA row is {table.meaning}.{also}{measure}\n\n{_table(heads, rows(own))}"

    index = _table(("table", "a row is"), [(f"[`{t.name}`](#{t.name})", t.meaning) for t in TABLES.values()])
    common = _table(heads, rows((next(iter(TABLES.values())).columns[0], *DERIVED)))
    parts = [
        "## All tables\n",
        index,
        "## Columns that many tables share\n",
        "Every table has these (`t_ns` is stored, the others follow from it):\n",
        common,
    ]
    for name, columns in shared.items():
        parts += [f"{name}:\n", _table(heads, rows(columns))]
    return "\n".join([*parts, "## Each table\n", *map(one, TABLES.values())])


def _kind(column: object) -> str:
    names, kind = getattr(column, "names", ()), getattr(column, "kind", "")
    if kind == "enum":
        return " ".join(f"`{n}`" for n in names)
    return {
        "i64": "integer",
        "f64": "number",
        "bool": "boolean",
        "str": "text",
        "json": "JSON",
        "hist": "64 counts",
        "addr": "address",
        "peer": "ip:port",
    }[kind]


def metrics() -> str:
    from exporters.metrics import METRICS

    def labels(names: Iterable[str]) -> str:
        return " ".join(f"`{re.sub(r'[^a-zA-Z0-9_]', '_', n)}`" for n in names) or "-"

    rows: dict[str, list[str]] = {}
    for m in METRICS:
        row = [
            f"`{m.prometheus}`",
            m.instrument,
            m.description,
            labels([*map(m.attribute, m.columns), *dict(m.labels), *m.observed]),
            labels(map(m.attribute, m.detail)),
            f"[`{m.table}`](tables.md#{m.table})" if m.table else "-",
        ]
        if m.prometheus in rows:  # one name may be made of several tables
            row[5] = f"{rows[m.prometheus][5]} {row[5]}"
        rows[m.prometheus] = row
    return _table(("name", "kind", "what", "labels", "more with `detail: full`", "table"), rows.values())


def alerts() -> str:
    from dashboards.alerts import RULES, page_of

    def summary(text: str) -> str:
        text = re.sub(r"\{\{ (if|else|end)\b.*?\}\}", "", text)
        return re.sub(r"\{\{ \$value.*?\}\}", "`N`", re.sub(r"\{\{ (?:or )?\$labels\.(\w+)[^}]* \}\}", r"`\1`", text))

    rows = [(f"[`{r.alert}`]({page_of(r.alert)})", r.severity, r.lasts or "at once", summary(r.summary)) for r in RULES]
    return _table(("alert", "severity", "fires after", "summary"), rows)


def recordings() -> str:
    from dashboards.alerts import RECORDINGS

    return _table(("series", "meaning"), [(f"`{r.record}`", r.meaning) for r in RECORDINGS])


def models() -> str:
    from agent.limiters.catalogue import CATALOGUE
    from agent.limiters.models.catalogue import MODELS

    used: dict[str, list[str]] = {}
    for one in CATALOGUE:
        for name in {step.model or one.model for step in one.steps} - {""}:
            used.setdefault(name, []).append(f"`{one.library}`")
    rows = [
        (f"`{m.name}`", m.meaning, m.source, m.unlike or "-", " ".join(used.get(m.name, ["-"])))
        for m in MODELS.values()
    ]
    return _table(("model", "what it does", "source", "differences from the source", "libraries"), rows)


def brokers() -> str:
    rows = [
        (one.title, f"`{name}`", f"`{one.flag}`", f"`{one.variable}`", f"`{one.form}`; {one.note}", one.watched)
        for name, one in known_brokers().items()
    ]
    return _table(("broker", "setting", "flag of `run`", "variable", "a server", "what is watched"), rows)


def settings() -> str:
    """Each setting, from the declarations."""
    from agent.config import Config

    reloaded = {*_reloaded(), *known_brokers()}

    def rows() -> Iterator[tuple[str, ...]]:
        for keys, one in described(Config):
            if one.kind.section is None:
                key, at_once = ".".join(keys), "yes" if keys[0] in reloaded else "-"
                yield f"`{key}`", f"`{yaml_text(one.shown)}`", one.kind.form, one.doc, at_once
                section = known_brokers()[key].section if key in known_brokers() else None
                for part in every(section) if section is not None else ():
                    yield f"`{key}[].{part.key}`", f"`{yaml_text(part.shown)}`", part.kind.form, part.doc, at_once

    return _table(("setting", "default", "values", "meaning", "applied at SIGHUP"), rows())


def _reloaded() -> list[str]:
    """The settings that agent/service/reload.py has something to do for; read, not run, since what it does needs an
    agent.
    """
    from agent.service.redis_reported import SETTINGS as OF_REDIS

    tree = ast.parse((ROOT / "agent/service/reload.py").read_text())
    (appliers,) = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "appliers"]
    found = {
        str(key.value)
        for node in ast.walk(appliers)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    return sorted(found | set(OF_REDIS))


def symptoms() -> str:
    table = _table(
        ("symptom", "what is wrong", "what to check first"),
        [(f"`{name}`", s.meaning, s.todo) for name, s in sorted(catalogue.symptoms().items())],
    )
    return _anchored("symptom", table)


def _anchored(what: str, table: str) -> str:
    """With what `tickscope explain` names as the page (agent/cli/explain.py)."""
    return re.sub(r"^\| `(\w+)`", rf'| <a id="{what}-\1"></a>`\1`', table, flags=re.MULTILINE)


def causes() -> str:
    from agent.lab.kind import kinds

    declared = sorted(catalogue.causes().items())
    of = {name: [k.name for k in kinds().values() if any(r.cause == name for r in k.right)] for name, _ in declared}
    heads = ("cause", "what it means", "what to do next", "faults of the laboratory that it explains")
    rows = [
        (f"`{name}`", c.meaning, c.todo or "-", " ".join(f"`{k}`" for k in of[name]) or "-") for name, c in declared
    ]
    return _anchored("cause", _table(heads, rows))


def thresholds() -> str:
    from agent.common.duration import number, span
    from agent.correlate.thresholds import CorrelatorConfig

    inuse, source = CorrelatorConfig(), (ROOT / "agent/correlate/thresholds.py").read_text()
    meanings = re.findall(r"^    (\w+): \w+ = [^#]+?  #: (.+)$", source, re.MULTILINE)

    def shown(name: str) -> str:
        value = getattr(inuse, name)
        return (
            span(value)
            if name.endswith("_ns")
            else (
                f"{value} s"
                if name.endswith("_s")
                else f"{value:.0%}"
                if isinstance(value, float) and value < 1
                else number(value)
            )
        )

    return _table(("what", "value", "meaning"), [(f"`{name}`", shown(name), meaning) for name, meaning in meanings])


#: Beginnings of the rows of the benchmarks' table with the agent's cost to the host, and its delays.
_COSTS = (
    "redis-benchmark",
    "CPU time of redis-server",
    "PSS",
    "start until",
    "CPU of all processes",
    "time from an event",
    "delay of a jump notice",
)


def costs() -> str:
    """Rows of tests/bench/README.md. Raises ValueError where one of the figures is no longer there."""
    lines = re.findall(
        r"^\| (.+?) \| (.+?) \| (.+?) \| .+? \|$",
        (ROOT / "tests/bench/README.md").read_text().partition("## Figures")[2],
        re.MULTILINE,
    )
    rows = [line for line in lines if line[0].startswith(_COSTS)]
    for start in _COSTS:
        if not any(row[0].startswith(start) for row in rows):
            raise ValueError(f"tests/bench/README.md has no figure of {start!r}")
    return _table(("what", "figure", "against"), rows)


def limiters() -> str:
    from agent.limiters.catalogue import CATALOGUE
    from agent.limiters.library import LimiterLibrary, Step

    def versions(one: LimiterLibrary, step: Step) -> str:
        if step.versions != ".*":
            return f"`{step.versions}`"
        return "all others" if len(one.steps) > 1 else "all"

    rows = [
        (
            f"`{one.library}`",
            one.language,
            versions(one, step),
            one.clock,
            one.algorithm,
            step.back,
            step.forward,
            "yes" if one.seen else "-",
        )
        for one in CATALOGUE
        for step in one.steps
    ]
    return _table(
        (
            "library",
            "language",
            "versions",
            "clock",
            "algorithm",
            "wall clock set back by D",
            "wall clock set forward by D",
            "decisions observed",
        ),
        rows,
    )


def probes() -> str:
    from agent.probes import discover

    rows = [
        (f"`{name}`", f"`{p.target}`" if p.target else "-", p.kind, p.loses or "-")
        for name, probe in discover().items()
        for p in probe.programs
    ]
    return _table(("family", "attached to", "kind", "not seen without it"), dict.fromkeys(rows))


def verbs() -> str:
    from agent.cli.main import SECTIONS, cli

    out = []
    for heading, names in SECTIONS.items():
        out.append(f"## {heading}\n")
        for name in names:
            command = cli.get_command(click.Context(cli), name)
            assert command is not None
            out += [_verb(name, command, 3)]
            out += [_verb(f"{name} {sub}", one, 4) for sub, one in getattr(command, "commands", {}).items()]
    return "\n".join(out)


def _verb(name: str, command: click.Command, level: int) -> str:
    context = click.Context(command, info_name=f"tickscope {name}")
    usage = " ".join(["tickscope", name, *command.collect_usage_pieces(context)])
    text = re.sub(r"\b\x08\n", "", command.help or "").strip()
    rows = [
        _option(option, context) for option in command.params if isinstance(option, click.Option) and not option.hidden
    ]
    options = "\n" + _table(("option", "meaning"), rows) if rows else ""
    return f"{'#' * level} {name}\n\n```text\n{usage}\n```\n\n{_paragraphs(text)}\n{options}"


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    """Not click's own help record, whose words change from one release to the next."""
    names = ", ".join(option.opts) + ("" if option.is_flag else f" {option.make_metavar(context)}")
    more = [f"default: {option.default}"] if option.show_default is True else []
    return f"`{names}`", " ".join(
        [option.help or "", *(f"[{word}]" for word in [*more, *([f"`{option.envvar}`"] if option.envvar else [])])]
    )


def _paragraphs(text: str) -> str:
    """Help as Markdown: what click prints as it stands (after a \\b) is a block of code."""
    out = []
    for part in re.split(r"\n\s*\n", text):
        if part.lstrip().startswith("\b"):
            out.append("```text\n" + "\n".join(line.strip() for line in part.splitlines()[1:]) + "\n```")
        else:
            out.append(re.sub(r"([<>*])", r"\\\1", " ".join(part.split())))
    return "\n\n".join(out)


#: Sections of docs/limits.md: what a user of the product misses.
AREAS = {
    "report": "A program cannot report, connect or subscribe",
    "limiters": "A limiter is missing, sampled or not named",
    "programs": "A program or library is not watched",
    "rows": "Rows are missing",
    "queues": "Queues are missing",
    "findings": "A finding is missing",
    "metrics": "Metrics or spans are missing",
    "store": "The store",
    "processes": "A process of the agent does not answer",
}
#: Events of one user's processes that the kernel programs limit (bpf/tickscope.h), by the stem of its definitions.
SHARES = {
    "PROCESS": ("stops and exits of one user's processes", "process_shares"),
    "DNS": ("DNS lookups of one user's processes", "dns_shares"),
    "SYSCALLS_SLOW": ("slow system calls of one user's processes", "syscalls_shares"),
    "SYSCALLS_CPU": ("waits for a CPU of one user's processes", "syscalls_shares"),
    "SYSCALLS_HOLDERS": ("holders of file locks that one user's processes wait for", "syscalls_shares"),
    "TCP_ANSWERS": ("servers of one user in `service_answer`", "tcp_shares"),
    "TCP_SERVED": ("processes and ports of one user in `service_latency`", "tcp_shares"),
    "TCP_RTT": ("connections of one user in `tcp_rtt`", "tcp_shares"),
    "TCP_CONNECT": ("connects of one user's processes", "tcp_shares"),
    "TCP_CLOSE": ("ends of one user's connections; of connections within the host, both ends", "tcp_shares"),
    "TCP_RESETS": ("resets of one user's connections", "tcp_shares"),
    "TCP_RETRANSMITS": ("retransmits of one user's connections", "tcp_shares"),
    "TLS": ("TLS handshakes of one user's processes", "tls_shares"),
    "LIMITER": ("decisions in limiters of one user's processes", "limiter_shares"),
    "CLOCK": ("refused attempts of one user to set a clock", "clock_shares"),
}
#: Places of one user in the kernel programs' maps: the number, what has them, what is missing without one, the counter.
PLACES = {
    "TCP_SOCKETS": ("open TCP connections of one user", "their process and duration are unknown", "tcp_shares"),
    "TCP_LISTENERS_MOST": (
        "listening TCP ports of one user",
        "connections have no process until the server process uses them",
        "tcp_shares",
    ),
    "TLS_OPEN_MOST": ("TLS handshakes under way of one user", "not seen", "tls_shares"),
    "TLS_THREADS_MOST": (
        "threads in TLS handshakes, and processes with handshakes, of one user",
        "further handshakes of that user are not seen",
        "tls_shares",
    ),
    "LIMITER_PLACES_MOST": ("limiter decisions under way of one user", "not seen", "limiter_shares"),
}


def bounds() -> str:
    from agent.common.fairness import PART, UpperBound
    from agent.probes import discover

    found: list[UpperBound] = []
    for path in sorted(p for folder in ("agent", "exporters") for p in (ROOT / folder).rglob("*.py")):
        if "\nBOUNDS = (" in path.read_text():
            found += import_module(".".join(path.relative_to(ROOT).with_suffix("").parts)).BOUNDS
    text = "".join(path.read_text() for path in sorted((ROOT / "bpf").glob("*.[ch]")))
    for stem, (what, lost) in SHARES.items():
        each_ns, most = (int(re.findall(rf"#define {stem}_{name} (\d+)", text)[0]) for name in ("EACH_NS", "MOST"))
        rate = f"{most:,} at once, {1e9 / each_ns:,.0f} per second; all users other than root together: twice that"
        found.append(UpperBound("rows", what, rate, "dropped", f"`loss` (`kernel`: `{lost}`)"))
    defined = dict(re.findall(r"#define (\w+) (\d+)", text))
    defined["TCP_SOCKETS"] = str(discover()["tcp"].options["TCP_SOCKETS"] // PART)
    for name, (what, then, lost) in PLACES.items():
        number = f"{int(defined[name]):,}; all users other than root together: twice that"
        found.append(UpperBound("rows", what, number, then, f"`loss` (`kernel`: `{lost}`)"))
    named = dict(re.findall(r"#define (\w+_PAGES) (\d+)", text))
    pages = re.findall(r"BPF_RINGBUF_OUTPUT\(\w+, (\w+)\)", text)
    rings = [4 * int(named.get(one, one)) for one in pages if one in named or one.isdecimal()]
    size = f"{min(rings)} KiB to {max(rings) >> 10} MiB"
    found.append(
        UpperBound(
            "rows", "ring buffer of kernel events", size, "new records are dropped", "`loss` (`kernel`, by ring)"
        )
    )
    assert {one.area for one in found} == AREAS.keys()
    heads = ("what", "limit", "effect", "shown in", "setting")
    return "\n".join(
        f"## {title}\n\n"
        + _table(heads, [(b.what, b.text(), b.then, b.shown, b.setting) for b in found if b.area == area])
        for area, title in AREAS.items()
    )


def timers() -> str:
    from agent.queues.timers import RULES

    rows = [
        (
            f"`{r.system}`",
            f"`{r.kind}`" + (f" ({r.where})" if r.where else ""),
            ", ".join(r.versions) or "any",
            r.clock,
            r.forward,
            r.backward,
            r.measured,
        )
        for r in RULES
    ]
    heads = ("system", "kind", "server", "clock", "after a jump forward", "after a jump back", "measured with")
    return _table(heads, rows)


BLOCKS: dict[str, Callable[[], str]] = {
    f.__name__: f
    for f in (
        tables,
        metrics,
        alerts,
        recordings,
        settings,
        symptoms,
        causes,
        thresholds,
        costs,
        limiters,
        probes,
        verbs,
        brokers,
        models,
        bounds,
        timers,
    )
}
