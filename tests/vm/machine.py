"""Boots a kernel under qemu, without KVM, on a read-only view of this host's files, and runs one command in it as
root.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
import tty
import warnings
from dataclasses import dataclass
from pathlib import Path

from agent.lab.stage.wallclock import WORD
from tests.vm.kernels import Kernel, Unavailable, cpio, get

QEMU = "qemu-system-x86_64"
#: Of the environment: where programs are, where the tests keep what they built or fetched, what they are asked to do.
KEPT = (
    "PATH",
    "HOME",
    "XDG_CACHE_HOME",
    "TICKSCOPE_TEST_CACHE",
    "TICKSCOPE_TEST_CLOCK_SIZES",
    "TICKSCOPE_TEST_QUIET_S",
)
#: A command that writes this to /dev/ttyS0 has the emulator stopped for STOP_S, in which nobody runs and the clocks go
#: on.
STOP_WORD, STOP_S = b"tickscope test: stop me", 3.0
#: A processor that is stuck in the kernel ends the machine, and its console says where; so does one whose time is over
#: (an NMI). The kernel does not try its timer's interrupts: on a busy host they come too late, and it panics.
BOOT_ARGUMENTS = (
    f"{WORD} console=ttyS0 panic=-1 softlockup_panic=1 unknown_nmi_panic=1 sysrq_always_enabled log_buf_len=4M quiet"
    " random.trust_cpu=on clocksource=tsc tsc=reliable no_timer_check"
)
LAST_WORDS_S = 20
#: How a kernel ends whose tracepoints were switched while another emulated processor translated that code (see
#: README.md).
STALE_CODE = re.compile(r"Oops: int3|watchdog: BUG: soft lockup")
#: A machine whose command says nothing for so long stands still.
STILL_S = 600.0


class StillError(TimeoutError):
    """A machine stands still; its last words are in the message."""


@dataclass(frozen=True)
class Outcome:
    """How a command ended. status: its exit status, None where the machine ended before it did. console: the kernel's
    messages.
    """

    kernel: Kernel
    status: int | None
    output: str
    console: str


def _script(command: list[str], cwd: Path, env: dict[str, str]) -> bytes:
    kept = {name: os.environ[name] for name in KEPT if name in os.environ}
    kept |= {
        "LANG": "C.UTF-8",
        "TERM": "linux",
        "TMPDIR": "/run/tmp",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TICKSCOPE_TEST_PATIENCE": "12",
        "TICKSCOPE_TEST_COARSE": "10",
        **env,
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in kept.items()]
    return "\n".join([*lines, f"cd {shlex.quote(str(cwd))}", f"exec {shlex.join(command)}", ""]).encode()


def _qemu(kernel: Kernel, initramfs: Path, scratch: Path, out: Path) -> list[str]:
    return [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "nice",
        "-n",
        "10",
        QEMU,
        "-nodefaults",
        "-no-reboot",
        "-display",
        "none",
        "-monitor",
        f"unix:{scratch}/monitor,server,nowait",
        "-m",
        "1G",
        "-smp",
        "2",
        "-accel",
        "tcg,thread=multi",
        "-cpu",
        "max",
        "-nic",
        "none",
        "-object",
        "rng-random,id=rng,filename=/dev/urandom",
        "-device",
        "virtio-rng-pci,rng=rng",
        "-virtfs",
        "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap",
        "-virtfs",
        f"local,path={out},mount_tag=out,security_model=none",
        "-serial",
        f"file:{scratch}/console",
        "-serial",
        "stdio",
        "-serial",
        f"file:{scratch}/status",
        "-kernel",
        str(kernel.image),
        "-initrd",
        str(initramfs),
        "-append",
        BOOT_ARGUMENTS,
    ]


def run(
    name: str,
    command: list[str],
    *,
    limit_s: float = 600,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    echo: bool = False,
    interactive: bool = False,
    out: Path | None = None,
    still_s: float = STILL_S,
) -> Outcome:
    """Runs a command on kernel ``name`` of tests.vm.kernels.SUITES; a second time, and warns, where the emulator broke
    the first (STALE_CODE), or it stood still.

    The command sees the host's files; what it writes is gone with the machine, but for what it leaves in /run/out,
    which is the host's directory ``out``. echo: its output also goes to stdout as it comes. Raises Unavailable where
    qemu or the kernel cannot be had, and TimeoutError after limit_s, or where twice nothing was written for still_s.
    """

    def once() -> Outcome:
        return _run(name, command, (limit_s, still_s), env or {}, cwd or Path.cwd(), echo, interactive, out)

    try:
        done = once()
    except StillError as error:
        warnings.warn(f"tests.vm: {name} stood still; once more. {error}", stacklevel=2)
        return once()
    broken = STALE_CODE.search(done.console) if done.status is None else None
    if broken:
        warnings.warn(
            f"tests.vm: {name} ended with {broken[0]!r}, as where the emulator runs code that the kernel has patched"
            " since; once more",
            stacklevel=2,
        )
        return once()
    return done


def _run(
    name: str,
    command: list[str],
    limits_s: tuple[float, float],
    env: dict[str, str],
    cwd: Path,
    echo: bool,
    interactive: bool,
    out: Path | None,
) -> Outcome:
    if not shutil.which(QEMU):
        raise Unavailable(f"{QEMU} is not installed (Debian: qemu-system-x86)")
    kernel = get(name)
    with tempfile.TemporaryDirectory(prefix="tickscope-vm-") as directory:
        scratch = Path(directory)
        (scratch / "out").mkdir()
        initramfs = scratch / "initramfs"
        script = _script(command, cwd, env)
        initramfs.write_bytes(kernel.initramfs.read_bytes() + cpio({"command": (0o100644, script)}))
        arguments = _qemu(kernel, initramfs, scratch, out or scratch / "out")
        stdin = None if interactive else subprocess.DEVNULL
        with (scratch / "stderr").open("wb") as errors:
            machine = subprocess.Popen(
                arguments,
                stdin=stdin,
                stdout=None if interactive else subprocess.PIPE,
                stderr=errors,
                start_new_session=not interactive,
            )
        output = (
            b""
            if interactive
            else _follow(machine, *limits_s, echo, Stopper(machine.pid, scratch / "console"), scratch)
        )
        machine.wait()
        if machine.returncode:
            raise Unavailable(f"{QEMU} ended with {machine.returncode}: {(scratch / 'stderr').read_text()[-400:]}")
        last = (scratch / "status").read_text().split()
        status = int(last[1]) if len(last) == 2 else None
        return Outcome(
            kernel,
            status,
            output.decode(errors="replace").replace("\r\n", "\n"),
            (scratch / "console").read_text(errors="replace"),
        )


class Stopper:
    """Stops an emulator (pid) each time that STOP_WORD appears in its console."""

    def __init__(self, pid: int, console: Path) -> None:
        self._pid, self._console, self._stops = pid, console, 0

    def check(self) -> None:
        """Takes STOP_S where there is something to do."""
        if not self._console.exists() or self._console.read_bytes().count(STOP_WORD) == self._stops:
            return
        self._stops += 1
        os.kill(self._pid, signal.SIGSTOP)
        time.sleep(STOP_S)
        os.kill(self._pid, signal.SIGCONT)


def _last_words(machine: subprocess.Popen[bytes], scratch: Path) -> str:
    """Asks the kernel for each processor and each task, then has it panic."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect(str(scratch / "monitor"))
        for ask in ("sendkey alt-sysrq-9", "sendkey alt-sysrq-l", "sendkey alt-sysrq-t", "nmi"):
            monitor.sendall(ask.encode() + b"\n")
            time.sleep(LAST_WORDS_S / 4)
    with contextlib.suppress(subprocess.TimeoutExpired):
        machine.wait(LAST_WORDS_S)
    return (scratch / "console").read_text(errors="replace")


def _follow(
    machine: subprocess.Popen[bytes], limit_s: float, still_s: float, echo: bool, stopper: Stopper, scratch: Path
) -> bytes:
    """Collects what the command writes until the machine ends; kills the machine, and raises TimeoutError, after
    limit_s.
    """
    assert machine.stdout is not None
    output, end, still = bytearray(), time.monotonic() + limit_s, time.monotonic() + still_s
    try:
        while True:
            ready, _, _ = select.select([machine.stdout], [], [], 0.2)
            stopper.check()
            if time.monotonic() > min(end, still):
                kind, what = (
                    (TimeoutError, f"still running after {limit_s:g} s")
                    if time.monotonic() > end
                    else (StillError, f"no word for {still_s:g} s")
                )
                wrote, load = output[-4000:].decode(errors="replace"), os.getloadavg()[0]
                raise kind(
                    f"{what}, the host's load {load:.1f}; it wrote:\n{wrote}\nits kernel, on an"
                    f" NMI:\n{_last_words(machine, scratch)}"
                )
            if not ready:
                continue
            part = os.read(machine.stdout.fileno(), 1 << 16)
            if not part:
                return bytes(output)
            output += part
            still = time.monotonic() + still_s
            if echo:
                sys.stdout.buffer.write(part)
                sys.stdout.flush()
    except BaseException:
        machine.kill()
        machine.wait()
        raise


def shell(name: str) -> Outcome:
    """A shell on a kernel, on this terminal. Raises Unavailable."""
    columns, lines = shutil.get_terminal_size()
    command = ["sh", "-c", f"stty cols {columns} rows {lines}; exec setsid -c bash -i"]
    saved = termios.tcgetattr(0)
    try:
        tty.setraw(0)
        return run(name, command, interactive=True)
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, saved)
