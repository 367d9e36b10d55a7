"""The loader: compiles, loads and attaches the BPF programs, hands over their descriptors, and exits.

Runs as root, under the system's python3 (which has BCC), as ``python3 -I loader.py FD PARENT``: FD is one end of a
SOCK_SEQPACKET pair, PARENT the agent's pid. It reads one JSON job and answers with JSON messages that carry descriptors
(SCM_RIGHTS). It is a separate process because BCC leaves 100 MB of LLVM mapped (agent/kernel/compiler.py) and needs
privileges that the agent drops. It is killed if the agent ends first.
"""

from __future__ import annotations

import array
import contextlib
import ctypes as ct
import errno
import json
import os
import resource
import signal
import socket
import struct
import sys
import threading
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.kernel import btf, compiler, syscall
from agent.kernel.compiler import Compiled
from agent.kernel.plan import FamilyPlan, ProgramPlan, plan
from agent.posix import privilege

FDS_PER_MESSAGE = 200
_PROG_LOAD, _RAW_TRACEPOINT_OPEN = 5, 17
_TYPE_KPROBE, _TYPE_RAW_TRACEPOINT, _TYPE_TRACING, _TRACE_RAW_TP, _TRACE_FEXIT, _TRACE_UPROBE_MULTI = (
    2,
    17,
    26,
    23,
    25,
    48,
)
_TAIL = 1200
#: BPF_JMP | BPF_CALL, BPF_FUNC_tail_call.
_CALL, _TAIL_CALL = 0x85, 12


class Captured:
    """Collects what the compiler writes to stderr while in the block."""

    text = ""

    def __enter__(self) -> Captured:
        self._file = open(os.memfd_create("stderr"), "rb")
        self._saved = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace").strip()
        self._file.close()


def _why(error: Exception | str, log: str) -> str:
    """The line of a compiler or verifier log with the error."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    informative = [line for line in lines if "error:" in line]
    if not informative:
        informative = [
            line
            for line in lines
            if not line.startswith(("processed", "HINT", "bpf:", "verification time", "stack depth"))
        ]
    detail = (informative[0] if "error:" in "".join(informative[:1]) else informative[-1]) if informative else ""
    return f"{error}: {detail}"[:_TAIL] if detail else str(error)[:_TAIL]


def on_own_stack(code: bytes) -> bool:
    """Whether a program could make a tail call. on_own_stack() in bpf/tickscope.h explains why a uprobe's
    program must.
    """
    return any(
        op == _CALL and imm == _TAIL_CALL and not registers >> 4
        for op, registers, _, imm in compiler.INSTRUCTION.iter_unpack(code)
    )


def load_program(code: bytes, name: str, kind: int, attach_type: int = 0, btf_id: int = 0) -> int:
    """BPF_PROG_LOAD. Raises OSError with the verifier's message. Layout: union bpf_attr.

    Does not use BCC, which cannot request all attach types: uprobe_multi (kernel 6.6), whose link attaches at many
    places at once, in a hundredth of the time of perf events, without CAP_SYS_ADMIN; fexit (kernel 5.5), where btf_id
    is the kernel function's.
    """
    instructions, licence = ct.create_string_buffer(code, len(code)), ct.create_string_buffer(b"GPL")
    refused, output = OSError(), ""
    for log_bytes in (0, 1 << 18):  # a log costs time, so it is requested only after a failure
        log = ct.create_string_buffer(log_bytes)
        head = struct.pack(
            "<IIQQIIQ",
            kind,
            len(code) // 8,
            ct.addressof(instructions),
            ct.addressof(licence),
            int(log_bytes > 0),
            log_bytes,
            ct.addressof(log) if log_bytes else 0,
        )
        try:
            return syscall.require(
                _PROG_LOAD, head + struct.pack("<II16sII36xI", 0, 0, name.encode()[:15], 0, attach_type, btf_id)
            )
        except OSError as error:
            refused, output = error, log.value[-4000:].decode(errors="replace")
    raise OSError(refused.errno, _why(refused, output))


def attach_raw(program: int, target: str) -> int:
    """BPF_RAW_TRACEPOINT_OPEN; an empty target for a program that has its function (fexit). Raises OSError."""
    name = ct.create_string_buffer(target.encode())
    return syscall.require(_RAW_TRACEPOINT_OPEN, struct.pack("<QI", ct.addressof(name) if target else 0, program))


class Loader:
    def __init__(self, job: dict[str, object]) -> None:
        self.job = job
        self.sources: dict[str, list[str]] = job["sources"]  # type: ignore[assignment]
        self.kernel = btf.Facts({}, {}, uprobe_multi=False)
        self.fds: list[int] = []
        self.out: list[dict[str, object]] = []

    def facts(self) -> None:
        """Reads the kernel's facts. Raises OSError if the kernel has no type information."""
        path = Path(str(self.job["btf"]))
        prelude = Path(str(self.job["prelude"]))
        paths = [prelude, *sorted(prelude.parent.glob("arch_*.h"))]  # it includes one of these
        texts = [path.read_text() for path in [*paths, *(Path(s) for files in self.sources.values() for s in files)]]
        families: list[dict[str, object]] = self.job["families"]  # type: ignore[assignment]
        programs: list[dict[str, str]] = [p for f in families for p in f["programs"]]  # type: ignore[attr-defined]
        name = compiler.key([texts, programs], [path])
        try:
            self.kernel = btf.Facts(**compiler.recall(name))
        except TypeError:  # not cached, or by another version
            tracepoints = {p["target"] for p in programs if p["target"]}
            functions = {p["fallback"] for p in programs if p["fallback"]}
            self.kernel = btf.facts(btf.Btf(str(path)), texts, tracepoints, functions)
            compiler.remember(name, asdict(self.kernel))

    def text(self, names: list[str]) -> str:
        parts = [f'#line 1 "{Path(str(self.job["prelude"])).name}"', Path(str(self.job["prelude"])).read_text()]
        for name in names:
            for path in map(Path, self.sources[name]):
                parts += [f'#line 1 "{path.name}"', path.read_text()]
            parts.append(str(self.job["behind"].get(name, "")))  # type: ignore[attr-defined]
        return "\n".join(parts)

    def compile(self, names: list[str]) -> Compiled:
        """Compiles these families as one translation unit, or takes them from the cache."""
        cflags = [f"-D{k}={v}" for k, v in sorted(self.kernel.words.items())] + list(self.job["cflags"])  # type: ignore[call-overload]
        cflags += ["-Wno-macro-redefined", "-Wno-unused-function"]
        text, flags = self.text(names), [flag for flag in cflags if not flag.startswith("-I")]
        name = compiler.key([text, flags], sorted(Path(str(self.job["prelude"])).parent.rglob("*.h")))
        compiled = compiler.kept_programs(name)
        if compiled is None:
            compiled = compiler.compile_text(text, cflags)
            compiler.keep_programs(name, compiled)
        return compiled

    def compile_what_compiles(self, plans: list[FamilyPlan]) -> Compiled | None:
        """Compiles one translation unit. If that fails, or ended the loader before this one, it leaves out the families
        that do not compile alone (with the families whose text they use).
        """
        usable = [p for p in plans if p.state != "unavailable"]
        if not usable:
            return None
        if not self.job.get("again"):
            with (
                Captured(),
                contextlib.suppress(Exception),
            ):  # BCC raises bare Exception; the failing family is found below
                return self.compile([p.name for p in usable])
        for family in usable:
            why = self._refusal(self._with(family.name, usable))
            if why:
                family.state, family.reason = "unavailable", f"does not compile: {why}"
                family.remedy = "report this with the output of `tickscope doctor -o json`"
        rest = [p.name for p in usable if p.state != "unavailable"]
        return self.compile(rest) if rest else None

    def _refusal(self, names: list[str]) -> str:
        """Why these families do not compile together; empty if they do. In a process of its own, which LLVM ends at
        some errors, such as a stack above 512 bytes.
        """
        with Captured() as captured:
            if not (child := os.fork()):
                status = 1
                try:
                    self.compile(names)
                    status = 0
                except Exception as error:  # noqa: BLE001
                    os.write(2, f"{error}\n".encode())
                finally:
                    os._exit(status)
            _, status = os.waitpid(child, 0)
        return _why("compiler", captured.text) if status else ""

    def _with(self, name: str, plans: list[FamilyPlan]) -> list[str]:
        """A family after the families that it comes after, transitively, as far as they compile."""
        after: dict[str, list[str]] = self.job["after"]  # type: ignore[assignment]
        wanted = {name}
        for one in reversed(plans):
            if one.state != "unavailable" and any(one.name in after[other] for other in wanted):
                wanted.add(one.name)
        return [one.name for one in plans if one.name in wanted]

    def load(self, compiled: Compiled, programs: list[ProgramPlan]) -> dict[str, int]:
        """Loads programs on all CPUs in parallel, since the kernel's verifier takes the time. Returns descriptors by
        function. Refused programs are marked as not to be attached.
        """
        loaded: dict[str, int] = {}
        longest_first = iter(sorted(programs, key=lambda p: len(compiled.code(p.function)), reverse=True))

        def work() -> None:
            for program in longest_first:
                fd = self.load_one(compiled, program)
                if fd is not None:
                    loaded[program.function] = fd

        threads = [threading.Thread(target=work) for _ in range(min(os.cpu_count() or 1, len(programs)))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return loaded

    def load_one(self, compiled: Compiled, program: ProgramPlan) -> int | None:
        code, name = compiled.code(program.function), program.function
        if not code:
            program.attach, program.reason = False, "its family's BPF sources have no function of this name"
            program.remedy = "correct the name in agent/probes/ (or agent/instruments/) or in bpf/"
            return None
        if program.kind.startswith("u") and not on_own_stack(code):
            program.attach, program.reason = False, f"{name} does not begin with on_own_stack()"
            program.remedy = "add it (bpf/tickscope.h)"
            return None
        if program.kind == "tp_btf" or program.instead_of:
            code = compiler.with_kernel_functions(code)
        try:
            if program.kind == "raw_tp":
                return load_program(code, name, _TYPE_RAW_TRACEPOINT)
            if program.kind == "tp_btf":
                return load_program(
                    code, name, _TYPE_TRACING, _TRACE_RAW_TP, self.type_id("btf_trace_", program.target)
                )
            if program.kind == "fexit":
                return load_program(code, name, _TYPE_TRACING, _TRACE_FEXIT, self.type_id("", program.target))
            return load_program(code, name, _TYPE_KPROBE, _TRACE_UPROBE_MULTI if self.kernel.uprobe_multi else 0)
        except OSError as error:
            program.attach, program.reason = False, f"the kernel refused it: {error.strerror}"
            program.remedy = "see `tickscope doctor`"
            return None

    def attach(self, family: FamilyPlan, program: ProgramPlan, fd: int) -> None:
        if program.kind.startswith("u") or (
            program.on_demand and program.kind != "fexit"
        ):  # patching a function's text each second is too risky
            self.share("program", family.name, program.function, fd)
            return
        try:
            link = attach_raw(fd, program.target if program.kind == "raw_tp" else "")
        except OSError as error:
            program.attach, program.reason = False, f"attach to {program.target}: {error.strerror}"
            return
        self.share("program", family.name, program.function, fd)
        self.share("link", family.name, program.function, link)

    def type_id(self, prefix: str, name: str) -> int:
        """The BTF id. Raises OSError if the kernel does not have it."""
        try:
            return self.kernel.types[prefix + name]
        except KeyError:
            raise OSError(errno.ENOENT, f"this kernel has no {prefix}{name} in its BTF") from None

    def share(self, kind: str, family: str, name: str, fd: int, **more: object) -> None:
        self.out.append({"kind": kind, "family": family, "name": name, **more})
        self.fds.append(fd)

    def run(self) -> list[FamilyPlan]:
        families: list[dict[str, object]] = self.job["families"]  # type: ignore[assignment]
        try:
            self.facts()
        except OSError as error:
            plans = plan(families, {})
            for p in plans:
                p.state, p.reason = "unavailable", f"no kernel type information: {error}"
                p.remedy = "run a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian's are)"
            return plans
        plans = plan(families, self.kernel.words)
        compiled = self.compile_what_compiles(plans)
        if compiled is None:
            return plans
        usable = [p for p in plans if p.state != "unavailable"]
        loaded = self.load(compiled, [p for f in usable for p in f.programs if p.attach and not p.instead_of])
        for family in usable:
            family.programs = [p for p in family.programs if p.instead_of not in loaded]
            loaded |= self.load(compiled, [p for p in family.programs if p.attach and p.instead_of])
            for name in family.maps:
                if name in compiled.maps:
                    self.share("map", family.name, name, compiled.maps[name])
            for program in family.programs:
                if program.function in loaded:
                    self.attach(family, program, loaded[program.function])
            family.settle()
        for name in ("control", "lost"):
            self.share("map", "", name, compiled.maps[name])
        return plans


def main() -> None:
    privilege.die_with_parent(int(sys.argv[2]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the agent handles Ctrl-C
    sock = socket.socket(fileno=int(sys.argv[1]))
    if not (request := sock.recv(1 << 20)):
        return  # the agent has ended
    job = json.loads(request)
    os.environ["BCC_KERNEL_SOURCE"] = job["include"]
    with contextlib.suppress(ValueError):  # only kernels before 5.11 count maps against it
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    problem = compiler.missing()
    if problem:
        sock.send(json.dumps({"error": problem, "remedy": "apt install python3-bpfcc"}).encode())
        return
    loader = Loader(job)
    plans = loader.run()
    for at in range(0, len(loader.fds), FDS_PER_MESSAGE):
        part = slice(at, at + FDS_PER_MESSAGE)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", loader.fds[part]))]
        sock.sendmsg([json.dumps({"fds": loader.out[part]}).encode()], ancillary)
    done = {"done": [p.as_json() for p in plans]}
    facts = {"words": loader.kernel.words, "uprobe_multi": loader.kernel.uprobe_multi}
    sock.send(json.dumps(done | facts).encode())
    sock.close()
    os._exit(0)  # skips BCC's and LLVM's destructors, which take 50 ms


if __name__ == "__main__":
    with contextlib.suppress(ConnectionError):  # the agent has ended
        main()
