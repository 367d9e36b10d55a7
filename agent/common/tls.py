"""How tickscope's own TLS clients verify a server. Imports ssl at the first use: it costs memory."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

if TYPE_CHECKING:
    import ssl

_PLACE = re.compile(r" \(_ssl\.c:\d+\)$")
#: Contexts that a connection uses, by their files and what identifies their content.
_in_use: WeakValueDictionary[tuple[object, ...], ssl.SSLContext] = WeakValueDictionary()


class TlsKeys(NamedTuple):
    """The parts of a server's setting that a remedy names."""

    authority: str
    certificate: str
    address: str


#: Of a server that is a section of the settings, and of one that is a Redis URL alone.
IN_SECTION = TlsKeys("`ca_file`", "`certificate_file`", "`url`")
IN_URL = TlsKeys("`ssl_ca_certs=`", "`ssl_certfile=`", "the host of the URL")


def client_context(authority: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """The context of a client that checks the server's certificate and name. authority: a file, empty for those of the
    system; certificate, key: of the client. Raises OSError, which names the files, if one cannot be used.

    Connections with the same files share a context while the files do not change: the system's authorities take 0.9 MB
    and 50 ms. Callers must not change it.

    Python 3.13 also refuses authorities without the extensions of RFC 5280 (VERIFY_X509_STRICT), which private ones
    often lack and other clients accept; this flag is not set.
    """
    import ssl

    files: tuple[str, ...] = (authority,)
    named = authority or ssl.get_default_verify_paths().cafile or "", certificate, key
    state = *named, *map(_state, named)
    if (known := _in_use.get(state)) is not None:
        return known
    try:
        context = ssl.create_default_context(cafile=authority or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if certificate:
            files = (certificate, key)
            # With a passphrase it would be asked for on a terminal.
            context.load_cert_chain(certificate, key or None, password="")
    except OSError as error:
        # Not the number: OpenSSL's are no errno, and would make it a TimeoutError or the like.
        raise OSError(0, f"{error_text(error)}: {', '.join(filter(None, files))}") from None
    _in_use[state] = context
    return context


def _state(file: str) -> tuple[int, ...]:
    """Changes with the content of a file; empty if there is none."""
    try:
        found = os.stat(file)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def unverified(why: str = "", keys: TlsKeys = IN_SECTION) -> str:
    """A server's certificate that was refused, with the setting to change. why: in the client's words, as far as they
    are known.
    """
    authority, address = f"set {keys.authority} to its authority", f"{keys.address} to a name in it"
    if not why:
        return f"certificate verify failed: {authority}, {address}"
    if _is_untimely(why):
        return f"certificate verify failed: {why}"
    # The cause comes last: a reason that is too long is cut at its end.
    wrong_name = "mismatch" in why or "does not match" in why
    return f"certificate verify failed: {f'set {address}' if wrong_name else authority} ({why})"


def unverified_by_us(error: Exception) -> bool:
    """Whether this client refused the server's certificate, which other clients may accept. They refuse one that has
    expired, or is not yet valid.
    """
    why = str(getattr(error, "verify_message", ""))
    return bool(why) and not _is_untimely(why)


def _is_untimely(why: str) -> bool:
    return "expired" in why or "not yet valid" in why


def ended(keys: TlsKeys = IN_SECTION) -> str:
    """After a handshake of TLS 1.3, a server without the client's certificate ends the connection."""
    return f"server ended TLS: it may require a client certificate (set {keys.certificate}), or speak no TLS"


def error_text(error: OSError, keys: TlsKeys = IN_SECTION) -> str:
    """What went wrong, for a user. OpenSSL's words for a server that hangs up, or speaks no TLS, name no cause."""
    if why := getattr(error, "verify_message", ""):
        return unverified(str(why), keys)
    text = _PLACE.sub("", error.strerror or str(error) or type(error).__name__)
    if "PEM lib" in text:
        return "no PEM, or a key with a passphrase"
    if "(EOF)" in text or "EOF occurred" in text:
        return ended(keys)
    if "ALERT_CERTIFICATE_REQUIRED" in text or "ALERT_BAD_CERTIFICATE" in text:
        return f"server refused TLS: it requires a client certificate, or another one (set {keys.certificate})"
    return "the server speaks no TLS at this port" if "WRONG_VERSION_NUMBER" in text else text
