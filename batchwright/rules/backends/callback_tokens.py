"""Make and verify the signed tokens in the URLs that backends call at the end of an asynchronous job.

A token has the form REQUEST.ORDINAL.EXPIRES.SIGNATURE. REQUEST is the line's request id as 32 hex digits.
ORDINAL is the number of earlier jobs of the line. EXPIRES is in Unix seconds. SIGNATURE is the HMAC-SHA256 of
the text before it, in base64.
"""

import base64
import hashlib
import hmac
import re
from typing import NamedTuple
from urllib.parse import unquote

CALLBACK_PATH = "/tasks/callback/"
_ID_PREFIX = "batch_req_"
_TOKEN = re.compile(r"([0-9a-f]{32})\.(0|[1-9]\d{0,8})\.([1-9]\d{0,11})\.([A-Za-z0-9_-]{43})", re.ASCII)

# A token, or the beginning of one that has a part of the signature.
_TOKEN_LIKE = re.compile(r"[0-9a-f]{32}\.\d+\.\d+\.[A-Za-z0-9_-]", re.ASCII)
_MAX_DECODINGS = 8


class CallbackToken(NamedTuple):
    """The content of the signed token in a callback URL.

    A backend calls this URL when an asynchronous job ends. The content identifies the job. `ordinal` is the
    number of earlier jobs of the same line.
    """

    request_id: str
    ordinal: int
    expires_at: int  # Unix seconds

    @property
    def id(self) -> str:
        """The id of the asynchronous job. The id does not change if the job is submitted again."""
        return f"{self.request_id.removeprefix(_ID_PREFIX)}.{self.ordinal}"


def sign_token(callback: CallbackToken, secret: str) -> str:
    """Sign the content of a callback token. Return the token as text for a URL."""
    content = f"{callback.id}.{callback.expires_at}"
    return f"{content}.{_signature(content, secret)}"


def verify_token(token: str, secret: str) -> CallbackToken | None:
    """Check the signature of a callback token, and return the token's content.

    Return None if the token is malformed or was not signed with this secret. An expired token is not
    rejected, so the caller must check `expires_at`.
    """
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    content = token.rpartition(".")[0]
    if not hmac.compare_digest(found[4], _signature(content, secret)):
        return None
    return CallbackToken(_ID_PREFIX + found[1], int(found[2]), int(found[3]))


def may_contain_token(path: str) -> bool:
    """Return True if a URL path may contain a callback token, which must not appear in logs.

    Percent-encoding is removed up to `_MAX_DECODINGS` times. If the path is still encoded after that, a token
    could be hidden in it, so the result is True.
    """
    for _ in range(_MAX_DECODINGS):
        if CALLBACK_PATH in path or _TOKEN_LIKE.search(path):
            return True
        encoded, path = path, unquote(path)
        if path == encoded:
            return False
    return True


def _signature(content: str, secret: str) -> str:
    digest = hmac.digest(secret.encode(), b"batchwright callback " + content.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
