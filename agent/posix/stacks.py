"""Stacks of threads that libraries in C start."""

from __future__ import annotations

import ctypes as ct

_ATTRIBUTES_BYTES = 256  # a pthread_attr_t is smaller on every architecture


def limit_stacks(size_bytes: int) -> None:
    """Sets the default stack size of this process's further threads. Without it, each has the limit of the shell
    (8 MiB), which counts as data. Nothing changes where the C library lacks the function.
    """
    libc = ct.CDLL(None)
    attributes = ct.create_string_buffer(_ATTRIBUTES_BYTES)
    set_default = getattr(libc, "pthread_setattr_default_np", None)
    if set_default is not None and not libc.pthread_attr_init(attributes):
        if not libc.pthread_attr_setstacksize(attributes, ct.c_size_t(size_bytes)):
            set_default(attributes)
        libc.pthread_attr_destroy(attributes)
