"""The table in docs/kernels.md of what works on which kernel, from what an agent on each of them says."""

from __future__ import annotations

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agent.probes import discover
from tests.vm import kernels, machine, suite

PAGE = suite.CHECKOUT / "docs/kernels.md"
BEGIN, END = "<!-- made by python -m tests.vm table -->\n", "<!-- end -->\n"
FAMILIES = ("exec", "process", "tcp", "tls", "syscalls", "clock", "limiter")
#: Include/uapi/linux/capability.h
CAPABILITIES = {2: "DAC_READ_SEARCH", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 39: "BPF", 40: "CHECKPOINT_RESTORE"}
#: Words of agent/kernel/btf.py that decide what a family can do: (family, least value, what follows below it).
WORDS = {
    "FUNC_ktime_get_tai_ns": (
        "clock",
        1,
        "no `bpf_ktime_get_tai_ns`: sizes of steps come from the agent's readings around them, with wider error bounds",
    ),
    "TP_tcp_send_reset": ("tcp", 3, "resets that are sent without a socket are not traced (before 6.10)"),
}


def check(name: str) -> dict[str, Any]:
    """What tests/vm/guest.py saw on a kernel, and its ``release``. Raises Unavailable, TimeoutError, and RuntimeError
    where it failed.
    """
    with tempfile.TemporaryDirectory(prefix="tickscope-table-") as out:
        command = [sys.executable, "tests/vm/guest.py", "/run/out/seen.json", "plans"]
        done = machine.run(name, command, limit_s=900, cwd=suite.CHECKOUT, out=Path(out))
        if done.status != 0:
            raise RuntimeError(f"{name}: {done.output}{done.console}")
        return {"release": done.kernel.release, **json.loads((Path(out) / "seen.json").read_text())}


def notes(family: str, seen: dict[str, Any]) -> list[str]:
    """What is different for a family on a kernel, a sentence each; empty where nothing is."""
    declared = {p.function: p for p in discover()[family].programs}
    plan, out = seen["plans"]["families"][family], []
    for program in plan["programs"]:
        one = declared[program["function"]]
        if program["attach"] and program["kind"] != one.kind:
            out.append(f"no tracepoint `{one.target}`: at the return of the function `{program['target']}`")
        elif not program["attach"]:
            out.append(f"{program['reason']}; not seen: {one.loses}")
    out += [
        text
        for word, (owner, least, text) in WORDS.items()
        if owner == family and seen["plans"]["words"].get(word, 0) < least
    ]
    status = next(p for p in seen["status"]["probes"] if p["probe"] == family)
    return out + ([status["reason"]] if status["state"] != "attached" and status["reason"] else [])


def render(samples: dict[str, dict[str, Any]]) -> str:
    """The table in Markdown, with its notes."""
    output: list[str] = []
    lines = [
        "| kernel | " + " | ".join(FAMILIES) + " | the agent keeps | the helper keeps |",
        "|---" * (len(FAMILIES) + 3) + "|",
    ]
    for name, seen in samples.items():
        cells = []
        for family in FAMILIES:
            marks = []
            for note in notes(family, seen):
                if note not in output:
                    output.append(note)
                marks.append(str(output.index(note) + 1))
            state = next(p["state"] for p in seen["status"]["probes"] if p["probe"] == family)
            cells.append(("whole" if state == "attached" else state) + (f" ({', '.join(marks)})" if marks else ""))
        kept = [
            ", ".join(n for bit, n in CAPABILITIES.items() if seen["capabilities"][role] >> bit & 1) or "nothing"
            for role in ("agent", "helper")
        ]
        lines.append(f"| {name}: {seen['release']} | " + " | ".join([*cells, *kept]) + " |")
    return "\n".join([*lines, "", *(f"{i}. {note}." for i, note in enumerate(output, 1))]) + "\n"


def rewrite(names: list[str]) -> None:
    """Boots these kernels and puts the table between its marks in docs/kernels.md. Raises what ``check`` raises."""
    for name in names:
        kernels.get(name)
    with ThreadPoolExecutor(suite.jobs()) as pool:
        samples = dict(zip(names, pool.map(check, names), strict=True))
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + render(samples) + END + rest.partition(END)[2])
