"""How tickscope's own TLS clients verify a server. Imports ssl at the first use: it costs memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl


def client_context(authority: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext:
    """The context of a client that checks the server's certificate and name. authority: a file, empty for those of the
    system; certificate, key: of the client. Raises OSError if a file cannot be used.

    Python 3.13 also refuses authorities without the extensions of RFC 5280 (VERIFY_X509_STRICT), which private ones
    often lack and other clients accept; this flag is not set.
    """
    import ssl

    context = ssl.create_default_context(cafile=authority or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if certificate:
        context.load_cert_chain(certificate, key or None)
    return context
