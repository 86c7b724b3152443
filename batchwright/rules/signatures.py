"""Signatures of webhooks (Standard Webhooks 1.0), as the official clients check them."""

import base64
import binascii
import hashlib
import hmac

_PREFIX = "whsec_"


def signed_headers(secret: str, event_id: str, sent_at: int, body: bytes) -> dict[str, str]:
    """The headers of one delivery. Clients refuse one that is older than 300 s: every retry is signed anew.

    `secret` is `whsec_` and base64; `sent_at` is in Unix seconds. Raises ValueError for another secret.
    """
    told = f"{event_id}.{sent_at}.".encode() + body
    signature = base64.b64encode(hmac.digest(_key(secret), told, hashlib.sha256)).decode()
    return {
        "webhook-id": event_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": f"v1,{signature}",
    }


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a webhook's secret is whsec_ followed by base64") from None
