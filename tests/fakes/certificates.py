"""TLS contexts of servers whose certificates tests issue."""

import ssl

import trustme


def server_context(certificate: trustme.LeafCert) -> ssl.SSLContext:
    """Return the TLS context of a server that has this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)  # pyright: ignore[reportUnknownMemberType] - of pyOpenSSL, without types
    return context
