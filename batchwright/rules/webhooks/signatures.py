"""Sign webhooks as the specification Standard Webhooks 1.0 says. OpenAI's clients verify such signatures."""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence

_PREFIX = "whsec_"
_KEY_BYTES = 24, 64  # as the specification demands


def new_secret(key: bytes) -> str:
    """Return a new webhook secret: `whsec_` followed by `key` in base64.

    The caller must take the key from a source of random bytes.
    """
    return _PREFIX + base64.b64encode(key).decode()


def check_secret(secret: str) -> None:
    """Check a webhook secret that a client has chosen.

    Raises:
        ValueError: the secret is not `whsec_` followed by 24 to 64 bytes in base64. The message does not
            contain the secret.
    """
    shortest, longest = _KEY_BYTES
    if not secret.startswith(_PREFIX) or not shortest <= len(_key(secret)) <= longest:
        raise ValueError(f"a webhook's secret is whsec_ followed by {shortest} to {longest} bytes in base64")


def signed_headers(secrets: Sequence[str], webhook_id: str, sent_at: int, body: bytes) -> dict[str, str]:
    """Return the HTTP headers that sign one attempt to deliver a webhook, with one signature for each secret.

    Call this for every attempt, because clients reject a signature that is older than 300 s.

    Args:
        secrets: the endpoint's secret. For some time after the secret was replaced, pass the new and the old
            secret. A secret is `whsec_` followed by the key in base64.
        webhook_id: id of the delivery, the same at every attempt.
        sent_at: time of the attempt, in Unix seconds.
        body: the exact body of the webhook.

    Raises:
        ValueError: the key in a secret is not valid base64.
    """
    signed = f"{webhook_id}.{sent_at}.".encode() + body
    digests = [hmac.digest(_key(secret), signed, hashlib.sha256) for secret in secrets]
    return {
        "webhook-id": webhook_id,
        "webhook-timestamp": str(sent_at),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }


def _key(secret: str) -> bytes:
    try:
        return base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("a webhook's secret is whsec_ followed by base64") from None
