"""A lock of the kernel that one thread of a program holds, and another one needs."""

from __future__ import annotations

from agent.lab.kind import Kind, Right, Size
from agent.lab.kinds.workers import setting_fault

ADDRESS_SPACE = Kind(
    "address_space_locked",
    "a thread maps much memory at once, again and again, and others of its process wait for the lock of their address"
    " space",
    Size("mb", 128, 512),
    ("api-maps",),
    (Right("kernel_lock"),),
    setting_fault("mb", lambda f, _: int(f.size)),
    (3.0, 6.0),
)
