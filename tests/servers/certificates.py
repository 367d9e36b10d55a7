"""Certificates for servers of tests."""

from __future__ import annotations

import subprocess
from pathlib import Path


def certificates(directory: Path) -> None:
    """Makes ``server.pem`` and ``server.key``, of 127.0.0.1 only and signed by ``ca.pem``, and ``other.pem``, another
    authority.
    """
    new = ("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1")
    for name, more in (("ca", ()), ("other", ()), ("server", signed)):
        own = ("-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        subprocess.run([*new, *own, *more], cwd=directory, check=True, capture_output=True)
