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


def self_signed(directory: Path) -> tuple[str, str]:
    """Paths of a key and its certificate, of the name localhost: ``key`` and ``cert`` in the directory."""
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=localhost"
    key, certificate = str(directory / "key"), str(directory / "cert")
    more = ("-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", certificate)
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
    return key, certificate
