"""By which device a Go binary's file is known to the kernel's side, whatever the mounts of this host are called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

#: In a mount namespace of its own: a tmpfs at each place, mounted by each name, a file on it, and what its key is; then
#: the same once it is nowhere mounted any more.
PROGRAM = r"""
import ctypes, json, os, struct, sys
from agent.instruments.limiters.binary import key_of
libc = ctypes.CDLL(None, use_errno=True)
def mount(source, place, options=b""):
    if libc.mount(source, os.fsencode(place), b"tmpfs", 0, options):
        raise OSError(ctypes.get_errno(), place)
found = []
for name in json.loads(sys.argv[2]):
    place = sys.argv[1] + "/" + name
    os.makedirs(place)
    mount(os.fsencode(name[-200:]), place)
    fd = os.open(place + "/program", os.O_CREAT | os.O_RDWR)
    st = os.fstat(fd)
    plain = struct.pack("<QQ", st.st_ino, os.major(st.st_dev) << 20 | os.minor(st.st_dev))
    with open("/proc/self/mountinfo", "rb") as mounts:
        longest = max(map(len, mounts))
    keys = key_of(fd, shared=False), key_of(fd, shared=True)
    libc.umount2(os.fsencode(place), 2)
    seconds = [struct.unpack("<QQ", key)[1] for key in (keys[1], key_of(fd, shared=False))]
    found.append([keys[0] == plain, *seconds, longest])
    mount(b"left", place)  # what comes later finds it in its variant
print(json.dumps(found))
"""

ODD = (
    "with spaces",
    "tab\tand\nline",
    "0:45 0:46 /",
    "back\\slash \\040 # -",
    "cr\rvt\x0bff\x0cfs\x1c nel\x85 ls\u2028",
    "1 2 0:1\r3 4 0:2",
    "\udcff\udcfe",
    " ",
    "-",
    "/".join(["\\" * 250] * 14),
)


def test_mounts_with_odd_names(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            sys.executable,
            "-c",
            PROGRAM,
            str(tmp_path),
            json.dumps(ODD),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [one[:3] for one in found] == [[True, 0, 0]] * len(ODD)
    assert found[-1][3] > 12_000  # each backslash is reported as \134
