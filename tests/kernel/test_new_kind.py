"""A kind of binary that the product does not know is one file and its BPF program: with them, a function of a compiled
program is found by the unprivileged analyzer process, and seen.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import agent.instruments
from tests.kernel.test_dns import Rig, reported
from tests.patience import until

#: The file, and its program: the name is the second argument, not the first as that of getaddrinfo. At the return is
#: the program that the dns family has.
KIND = '''
"""Resolvers that programs of the shop bring with them."""

from agent.binaries.contract import Analysis, Attachment
from agent.binaries.elf import Elf, ElfError
from agent.instruments.kind import BinaryKind
from agent.kernel.probe import Program


def analyze(fds):
    try:
        elf = Elf(fds[0])
        found = elf.symbols([b"shop_lookup"])
    except ElfError:
        return []
    places = [elf.file_offset(one.value) for one in found.values()]
    if not places:
        return []
    return [Analysis([Attachment("dns_out", places, at_return=True), Attachment("dns_shop_in", places)])]


KIND = BinaryKind(
    name="shop resolver",
    family="dns",
    analyze=analyze,
    executables=True,
    programs=(Program("dns_shop_in", "uprobe", loses="which names the shop looks up"),),
    sources=(__file__.replace(".py", ".bpf.c"),),
)
'''
BPF = """
int dns_shop_in(struct pt_regs *ctx)
{
	on_own_stack(ctx);
	u32 tid = bpf_get_current_pid_tgid();
	struct dns_call call = {.start_ns = bpf_ktime_get_boot_ns(), .node = reg_arg2(ctx), .rcode = UNKNOWN8};
	if (dns_calls.update(&tid, &call))
		lose(LOST_dns_events);
	return 0;
}
"""
PROGRAM = r"""
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int shop_lookup(const void *shop, const char *name)
{
	usleep(2000);
	return name[0] == 'n' ? -2 : 0;
}
int main(void)
{
	char line[64];
	while (scanf("%63s", line) == 1) {
		shop_lookup(&line, line);
		puts("done");
		fflush(stdout);
	}
	return 0;
}
"""


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """The dns family, of an agent that has the file among its kinds; its analyzer process has it, too."""
    (tmp_path / "kinds").mkdir()
    (tmp_path / "kinds" / "shop_resolver.py").write_text(KIND)
    (tmp_path / "kinds" / "shop_resolver.bpf.c").write_text(BPF)
    more = f"import agent.instruments\nagent.instruments.__path__.append({str(tmp_path / 'kinds')!r})\n"
    (tmp_path / "sitecustomize.py").write_text(more)
    paths = (str(tmp_path), os.environ.get("PYTHONPATH"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setattr(agent.instruments, "__path__", [*agent.instruments.__path__, str(tmp_path / "kinds")])
    one = Rig()
    yield one
    one.close()


def test_a_new_kind_is_one_file_and_its_program(rig: Rig, tmp_path: Path) -> None:
    program = tmp_path / "shop"
    subprocess.run(["gcc", "-x", "c", "-", "-o", str(program)], input=PROGRAM.encode(), check=True)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:

        def rows() -> np.ndarray:
            rig.pump()
            found = np.concatenate(rig._rows) if rig._rows else np.zeros(0, [("pid", "<i8")])
            return found[found["pid"] == child.pid]

        def look_up(name: str) -> None:
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(f"{name}\n")
            child.stdin.flush()
            assert child.stdout.readline() == "done\n"

        until(lambda: len(rows()), turn=lambda: look_up("until.seen"))
        before = len(rows())
        names = [*(f"shop{number}.lab" for number in range(5)), "nothing.lab", "last.lab"]
        for name in names:
            look_up(name)
        until(lambda: len(rows()) >= before + len(names))
        child.stdin.close()  # type: ignore[union-attr]
    expected = [(name, "nxdomain" if name == "nothing.lab" else "ok", None, None) for name in names]
    assert reported(rows())[-len(names) :] == expected
