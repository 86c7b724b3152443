"""Sign webhooks according to Standard Webhooks 1.0. OpenAI's clients verify such signatures."""

import base64
import binascii
import hashlib
import hmac

_PREFIX = "whsec_"


def signed_headers(secret: str, event_id: str, sent_at: int, body: bytes) -> dict[str, str]:
    """Return the HTTP headers that sign one delivery of a webhook.

    Call this for every retry, because clients reject a signature that is older than 300 s.

    Args:
        secret: `whsec_` followed by the key in base64.
        event_id: id of the event, the same at every retry.
        sent_at: time of the delivery, in Unix seconds.
        body: the exact body of the webhook.

    Raises:
        ValueError: `secret` has another form.
    """
    signed = f"{event_id}.{sent_at}.".encode() + body
    signature = base64.b64encode(hmac.digest(_key(secret), signed, hashlib.sha256)).decode()
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
