"""The loader: compiles, loads and attaches the BPF programs, hands their descriptors over, and exits.

Runs as root, under the system's python3 (which has BCC), as ``python3 -I loader.py FD``: FD is one end of a SOCK_SEQPACKET pair.
It reads one JSON job, answers with JSON messages that carry descriptors (SCM_RIGHTS), and is the only code that imports bcc.
A process of its own because BCC leaves 100 MB of LLVM mapped and needs privileges that the agent gives up.
"""

from __future__ import annotations

import array
import contextlib
import ctypes as ct
import json
import os
import resource
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from agent.kernel import btf
from agent.kernel.plan import FamilyPlan, ProgramPlan, plan

FDS_PER_MESSAGE = 200
_SYS_BPF = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
_PROG_LOAD, _TYPE_KPROBE, _TYPE_TRACING, _TRACE_FENTRY, _TRACE_UPROBE_MULTI = 5, 2, 26, 24, 48
_TAIL = 1200


class Captured:
    """Collects what C code writes to stderr (compiler errors, the verifier's log) while in the block."""

    text = ""

    def __enter__(self) -> Captured:
        self._file = tempfile.TemporaryFile()
        self._saved = os.dup(2)
        os.dup2(self._file.fileno(), 2)
        return self

    def __exit__(self, *_: object) -> None:
        os.dup2(self._saved, 2)
        os.close(self._saved)
        self._file.seek(0)
        self.text = self._file.read().decode(errors="replace").strip()
        self._file.close()


def _why(error: Exception, log: str) -> str:
    """The line of a compiler or verifier log that says what is wrong."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if "error:" in line]
    if not telling:
        telling = [line for line in lines if not line.startswith(("processed", "HINT", "bpf:", "verification time", "stack depth"))]
    detail = (telling[0] if "error:" in "".join(telling[:1]) else telling[-1]) if telling else ""
    return f"{error}: {detail}"[:_TAIL] if detail else str(error)[:_TAIL]


def load_typed(code: bytes, name: str, kind: int, attach_type: int, btf_id: int = 0) -> int:
    """Loads a program with an attach type that BCC cannot ask for, or only by the function's name. Raises OSError.

    uprobe_multi (kernel 6.6): such a link attaches at many places at once, in a hundredth of the time of a perf event each, and
    needs no CAP_SYS_ADMIN. fentry (kernel 5.5): btf_id is the kernel function's. Layout: union bpf_attr.
    """
    libc = ct.CDLL(None, use_errno=True)
    libc.syscall.restype = ct.c_long
    instructions, licence = ct.create_string_buffer(code, len(code)), ct.create_string_buffer(b"GPL")
    log = ct.create_string_buffer(1 << 18)
    for log_level in (0, 1):
        head = struct.pack("<IIQQIIQ", kind, len(code) // 8, ct.addressof(instructions), ct.addressof(licence), log_level,
                           len(log) if log_level else 0, ct.addressof(log) if log_level else 0)  # fmt: skip
        attr = head + struct.pack("<II16sII36xI", 0, 0, name.encode()[:15], 0, attach_type, btf_id)
        attr = attr.ljust(128, b"\0")
        fd = int(libc.syscall(_SYS_BPF, _PROG_LOAD, ct.create_string_buffer(attr, 128), 128))
        if fd >= 0:
            return fd
    errno = ct.get_errno()
    os.write(2, log.value[-4000:])
    raise OSError(errno, f"load {name}: {os.strerror(errno)}")


class Loader:
    def __init__(self, job: dict[str, object]) -> None:
        self.job = job
        self.sources: dict[str, str] = job["sources"]  # type: ignore[assignment]
        self.words: dict[str, int] = {}
        self.multi = False
        self.kernel: btf.Btf
        self.fds: list[int] = []
        self.out: list[dict[str, object]] = []

    def facts(self) -> None:
        self.kernel = kernel = btf.Btf(str(self.job["btf"]))
        self.multi = "BPF_TRACE_UPROBE_MULTI" in kernel.enumerators("bpf_attach_type")
        texts = [Path(p).read_text() for p in [str(self.job["prelude"]), *self.sources.values()]]
        families: list[dict[str, object]] = self.job["families"]  # type: ignore[assignment]
        targets = [f"TP_{p['target']}" for f in families for p in f["programs"] if p["target"]]  # type: ignore[attr-defined]
        self.words = btf.defines(kernel, [*texts, " ".join(targets)])

    def text(self, names: list[str]) -> str:
        parts = [f'#line 1 "{Path(str(self.job["prelude"])).name}"', Path(str(self.job["prelude"])).read_text()]
        for name in names:
            path = Path(self.sources[name])
            parts += [f'#line 1 "{path.name}"', path.read_text(), str(self.job["assertions"].get(name, ""))]  # type: ignore[attr-defined]
        return "\n".join(parts)

    def compile(self, names: list[str]) -> object:
        from bcc import BPF

        cflags = [f"-D{k}={v}" for k, v in self.words.items()] + list(self.job["cflags"])  # type: ignore[call-overload]
        return BPF(text=self.text(names), cflags=[*cflags, "-Wno-macro-redefined", "-Wno-unused-function"])

    def compile_what_compiles(self, plans: list[FamilyPlan]) -> object | None:
        """One translation unit; where it does not compile, the families that do not compile alone are left out."""
        usable = [p for p in plans if p.state != "unavailable"]
        if not usable:
            return None
        with Captured(), contextlib.suppress(Exception):  # BCC raises bare Exception; which family it was is found below
            return self.compile([p.name for p in usable])
        for family in usable:
            captured = Captured()
            try:
                with captured:
                    self.compile([family.name])
            except Exception as error:  # noqa: BLE001
                family.state, family.reason = "unavailable", "does not compile: " + _why(error, captured.text)
                family.remedy = "report this with the output of `tickscope doctor -o json`"
        rest = [p.name for p in usable if p.state != "unavailable"]
        return self.compile(rest) if rest else None

    def load(self, module: object, family: FamilyPlan, program: ProgramPlan) -> None:
        from bcc import BPF
        from bcc.libbcc import lib

        name = program.function.encode()
        captured = Captured()
        try:
            with captured:
                if program.kind == "raw_tp":
                    fd = module.load_func(name, BPF.RAW_TRACEPOINT).fd  # type: ignore[attr-defined]
                elif program.kind == "fentry":
                    target = self.kernel.function(program.target)
                    fd = load_typed(module.dump_func(name), program.function, _TYPE_TRACING, _TRACE_FENTRY, target)  # type: ignore[attr-defined]
                elif self.multi:
                    fd = load_typed(module.dump_func(name), program.function, _TYPE_KPROBE, _TRACE_UPROBE_MULTI)  # type: ignore[attr-defined]
                else:
                    fd = module.load_func(name, BPF.KPROBE).fd  # type: ignore[attr-defined]
        except Exception as error:  # noqa: BLE001
            program.attach, program.reason = False, "the kernel refused it: " + _why(error, captured.text)
            program.remedy = "see `tickscope doctor`"
            return
        if program.kind.startswith("u") or program.on_demand:
            self.share("program", family.name, program.function, fd)
            return
        link = lib.bpf_attach_raw_tracepoint(fd, None if program.kind == "fentry" else program.target.encode())  # the program knows its function
        if link < 0:
            program.attach = False
            program.reason = f"attach to {program.target}: {os.strerror(ct.get_errno() or -link)}"
            return
        self.share("program", family.name, program.function, fd)
        self.share("link", family.name, program.function, link)

    def share(self, kind: str, family: str, name: str, fd: int, **more: object) -> None:
        self.out.append({"kind": kind, "family": family, "name": name, **more})
        self.fds.append(fd)

    def run(self) -> list[FamilyPlan]:
        from bcc.libbcc import lib

        families: list[dict[str, object]] = self.job["families"]  # type: ignore[assignment]
        try:
            self.facts()
        except OSError as error:
            plans = plan(families, {})
            for p in plans:
                p.state, p.reason = "unavailable", f"no kernel type information: {error}"
                p.remedy = "run a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian's are)"
            return plans
        plans = plan(families, self.words)
        module = self.compile_what_compiles(plans)
        if module is None:
            return plans
        for family in [p for p in plans if p.state != "unavailable"]:
            for name in family.maps:
                fd = lib.bpf_table_fd(module.module, name.encode())  # type: ignore[attr-defined]
                if fd >= 0:
                    self.share("map", family.name, name, fd)
            for program in [p for p in family.programs if p.attach]:
                self.load(module, family, program)
            family.settle()
        for name in ("control", "lost"):
            self.share("map", "", name, lib.bpf_table_fd(module.module, name.encode()))  # type: ignore[attr-defined]
        return plans


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the agent's to answer
    sock = socket.socket(fileno=int(sys.argv[1]))
    job = json.loads(sock.recv(1 << 20))
    os.environ["BCC_KERNEL_SOURCE"] = job["include"]
    with contextlib.suppress(ValueError):  # only kernels before 5.11 count maps against it
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    try:
        from bcc import BPF  # noqa: F401
    except ImportError as error:
        sock.send(json.dumps({"error": f"python3 cannot import BCC ({error})", "remedy": "apt install python3-bpfcc"}).encode())
        return
    loader = Loader(job)
    plans = loader.run()
    for at in range(0, len(loader.fds), FDS_PER_MESSAGE):
        part = slice(at, at + FDS_PER_MESSAGE)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", loader.fds[part]))]
        sock.sendmsg([json.dumps({"fds": loader.out[part]}).encode()], ancillary)
    sock.send(json.dumps({"done": [p.as_json() for p in plans], "words": loader.words, "uprobe_multi": loader.multi}).encode())
    sock.close()
    os._exit(0)  # BCC's and LLVM's destructors take 50 ms and free what exit frees


if __name__ == "__main__":
    main()
