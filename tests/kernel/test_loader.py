"""The loader with families that this kernel refuses, that do not compile, or whose kept form is damaged: the others
run.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.common.clocks import boot_ns
from agent.kernel import compiler, loaded_families, loader_process
from agent.kernel.kernel_source import KernelSource
from agent.kernel.loaded_families import BPF_DIR, Loaded, _job, load, release
from agent.kernel.probe import Probe, Program, ordered
from agent.probes import discover
from tests.patience import PATIENCE

FAMILIES = {
    "refused": "int refused_program(struct bpf_raw_tracepoint_args *ctx) { return *(int *)ctx->args[0]; }",
    "broken": "int broken_program(struct bpf_raw_tracepoint_args *ctx) { return nothing_of_that_name; }",
    "first": "#define FIRST 7\nint first_program(struct bpf_raw_tracepoint_args *ctx) { return FIRST; }",
    "second": (
        "#ifndef FIRST\n#error it needs first\n#endif\nint second_program(struct bpf_raw_tracepoint_args *ctx) { return"
        " FIRST; }"
    ),
    "large": (  # LLVM ends its process
        "int large_program(struct bpf_raw_tracepoint_args *ctx)"
        " { char a[600]; bpf_probe_read(a, 600, ctx); return a[7] + a[599]; }"
    ),
    "strange": "int strange_program(struct bpf_raw_tracepoint_args *ctx) { return 0; }",
    "misnamed": "int misnamed_other(struct bpf_raw_tracepoint_args *ctx) { return 0; }",
    "shared": "int shared_program(struct pt_regs *ctx) { return 0; }",
    "padded": (
        "struct padded_event { u32 a; u32 b; };\nint padded_program(struct bpf_raw_tracepoint_args *ctx) { return 0; }"
    ),
}


def family(name: str) -> Probe:
    target = "no_such_tracepoint" if name == "strange" else "sched_process_exit"
    program = (
        Program(f"{name}_program", "uprobe", loses="nothing")
        if name == "shared"
        else Program(f"{name}_program", target=target, loses="nothing")
    )
    return Probe(name, (program,), after=("first",) if name == "second" else ())


def run(tmp_path: Path, *names: str) -> Loaded:
    """Loads exec and these families from a copy of the BPF sources."""
    sources = tmp_path / "bpf"
    if not sources.exists():
        shutil.copytree(BPF_DIR, sources)
    for name in names:
        (sources / f"{name}.bpf.c").write_text(FAMILIES[name] + "\n")
    return load([discover()["exec"], *map(family, names)], bpf_dir=sources)


def seen(loaded: Loaded) -> int:
    """Programs that the exec family reports of seven that are run; ends everything."""
    source, counts = KernelSource(loaded), list[int]()
    source.subscribe("exec_events", lambda records: counts.append(int((records["comm"] == b"true").sum())))
    for _ in range(7):
        os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)
    list(source.drain(1))
    source.close()
    return sum(counts)


def test_what_is_lost_before_the_first_scan_was_not_lost_before_the_start(tmp_path: Path) -> None:
    loaded, begun_ns = run(tmp_path), boot_ns()
    source = KernelSource(loaded)
    source._lost[loaded.counted.index("exec_events")] += 5
    (rows,) = (batch.rows for batch in source.drain(boot_ns()) if batch.table == "loss")
    source.close()
    assert begun_ns <= rows["from_ns"][0] <= rows["to_ns"][0]


#: Prints, by program, the operations (imm) of its atomic instructions.
ATOMICS = """
import json, os, sys
from agent.kernel.compiler import INSTRUCTION
from agent.kernel.loader import Loader
loader = Loader(json.load(sys.stdin))
os.environ["BCC_KERNEL_SOURCE"] = str(loader.job["include"])
loader.facts()
codes = loader.compile(list(loader.sources))._programs
atomic = lambda code: [imm for op, _, _, imm in INSTRUCTION.iter_unpack(code) if op in (0xC3, 0xDB)]
print(json.dumps({name: atomic(code) for name, code in codes.items()}))
"""


def test_programs_of_all_kernels_have_no_atomics_but_additions() -> None:
    """Others came with Linux 5.12; before, the verifier refuses the program."""
    probes = ordered(discover().values())
    job = json.dumps(_job(probes, {}, BPF_DIR, "/sys/kernel/btf/vmlinux")[0])
    argv = ["/usr/bin/python3", "-c", ATOMICS]
    out = subprocess.run(argv, input=job, cwd=BPF_DIR.parent, check=True, text=True, stdout=subprocess.PIPE).stdout
    found = json.loads(out)
    everywhere = {p.function for probe in probes for p in probe.programs if not p.needs}
    assert everywhere < found.keys() and any(found.values())
    assert {name: found[name] for name in everywhere if any(found[name])} == {}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("refused", "the kernel refused it"),
        ("broken", "nothing_of_that_name"),
        ("large", "BPF stack limit"),
        ("strange", "no tracepoint no_such_tracepoint"),
        ("misnamed", "misnamed_program: its family's BPF sources have no function of this name"),
        ("shared", "on_own_stack()"),
    ],
)
def test_one_bad_family_leaves_the_others(tmp_path: Path, name: str, words: str) -> None:
    loaded = run(tmp_path, name)
    assert loaded.families[name].state == "unavailable"
    assert words in loaded.families[name].reason
    assert loaded.families["exec"].state == "attached"
    assert seen(loaded) >= 7


def test_one_that_does_not_compile_leaves_those_that_use_another_s_text(tmp_path: Path) -> None:
    loaded = run(tmp_path, "broken", "second", "first")
    assert {name: one.state for name, one in loaded.families.items()} == {
        "exec": "attached",
        "broken": "unavailable",
        "second": "attached",
        "first": "attached",
    }
    assert seen(loaded) == 7


def test_a_layout_that_differs_from_the_compilers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "agent.kernel.wire_structs.Wire.assertions",
        lambda *_: '_Static_assert(sizeof(struct proc) == 1, "size of proc");\n',
    )
    loaded = run(tmp_path, "padded")
    assert loaded.families["padded"].state == "unavailable"
    assert "size of proc" in loaded.families["padded"].reason


def test_what_was_kept_works_like_what_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "bpf").mkdir()
    shutil.copytree(BPF_DIR, tmp_path / "bpf", dirs_exist_ok=True)
    source = tmp_path / "bpf" / "exec.bpf.c"
    source.write_text(source.read_text() + f"/* {tmp_path} */\n")  # never compiled before
    before = set(compiler.CACHE.glob("*.json"))
    assert seen(run(tmp_path)) >= 7
    made = set(compiler.CACHE.glob("*.json")) - before
    (kept,) = (path for path in made if "programs" in json.loads(path.read_text()))
    (facts,) = made - {kept}
    assert kept.stat().st_mode & 0o777 == 0o600
    inode = kept.stat().st_ino
    assert seen(run(tmp_path)) >= 7
    assert kept.stat().st_ino == inode, "the second start compiled again"
    for path, damage in (
        (kept, b""),
        (kept, b"{"),
        (kept, kept.read_bytes()[:-700]),
        (kept, b'{"maps": [], "programs": {}}'[:20]),
        (facts, b""),
        (facts, b'{"words": {}}'),
    ):
        path.write_bytes(damage)
        assert seen(run(tmp_path)) >= 7
    kept.chmod(0o666)
    assert compiler.recall(kept.stem) is None
    for path in made:
        path.unlink()


def test_a_program_in_place_of_another_is_loaded_only_without_that(tmp_path: Path) -> None:
    better = Program("first_program", target="sched_process_exit")
    other = Program("other_program", target="sched_process_exit", instead_of="first_program")
    (tmp_path / "bpf").mkdir()
    shutil.copytree(BPF_DIR, tmp_path / "bpf", dirs_exist_ok=True)
    text = FAMILIES["first"] + FAMILIES["first"].partition("\n")[2].replace("first_", "other_").join("\n\n")
    (tmp_path / "bpf" / "first.bpf.c").write_text(text)
    for target, loaded in (("sched_process_exit", {"first_program"}), ("no_such_tracepoint", {"other_program"})):
        one = load([Probe("first", (dataclasses.replace(better, target=target), other))], bpf_dir=tmp_path / "bpf")
        family = one.families["first"]
        assert family.programs.keys() == loaded
        assert family.state == ("attached" if loaded == {"first_program"} else "degraded")
        release(one)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (None, "a process cannot be started: No such file or directory"),
        ("exit 3", "exit status 3"),
        ("kill -9 $$", "SIGKILL"),
        ("exec sleep 60", "it took longer than 0.3 s"),
        ("exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&- sleep 60", "it took longer than 0.3 s"),
    ],
    ids=["not startable", "exits", "killed", "hangs", "hangs without its socket"],
)
def test_a_loader_that_fails_twice_leaves_its_families_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str | None, why: str
) -> None:
    python, started = tmp_path / "python3", tmp_path / "started"
    if script is not None:
        python.write_text(f"#!/bin/sh\necho $$ >> {started}\n{script}\n")
        python.chmod(0o755)
    monkeypatch.setattr(loader_process, "SYSTEM_PYTHON", str(python))
    for module in (loader_process, loaded_families):
        monkeypatch.setattr(module, "TIMEOUT_S", 0.3)
    before = os.listdir("/proc/self/fd")
    loaded = load([discover()["exec"]])
    family = loaded.families["exec"]
    assert (family.state, family.reason) == ("unavailable", f"the loader failed twice: {why}")
    assert "restart tickscope" in family.remedy
    assert os.listdir("/proc/self/fd") == before
    pids = started.read_text().split() if script is not None else []
    assert len(pids) == (2 if script is not None else 0)
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


#: Loads a family that was never loaded before.
LOADING = """
import sys
from pathlib import Path
from agent.kernel.loaded_families import load
from agent.probes import discover
load([discover()["exec"]], bpf_dir=Path(sys.argv[1]))
"""


def test_a_loader_does_not_outlive_its_agent(tmp_path: Path) -> None:
    """Stopped while it works, it could not end by itself."""
    sources = tmp_path / "bpf"
    shutil.copytree(BPF_DIR, sources)
    (sources / "exec.bpf.c").write_text((sources / "exec.bpf.c").read_text() + f"/* {tmp_path} */\n")
    agent = subprocess.Popen([sys.executable, "-c", LOADING, str(sources)], cwd=BPF_DIR.parent)
    children, loader = Path(f"/proc/{agent.pid}/task/{agent.pid}/children"), 0
    until = time.monotonic() + 60 * PATIENCE
    while not loader or b"libbpf" not in Path(f"/proc/{loader}/maps").read_bytes():  # it reads the kernel's types
        assert time.monotonic() < until and agent.poll() is None
        loader = int(children.read_text().partition(" ")[0] or 0)
    os.kill(loader, signal.SIGSTOP)
    handle = os.pidfd_open(loader)
    agent.kill()
    agent.wait()
    assert select.select([handle], [], [], 60 * PATIENCE)[0], "the loader is still there"
    os.close(handle)
