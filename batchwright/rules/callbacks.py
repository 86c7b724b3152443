"""Tokens of URLs that backends call when a job has ended: whose job it is, until when, signed.

REQUEST.ORDINAL.EXPIRES.SIGNATURE: the 32 digits of a line's request id, which stand for its tenant, batch and
line; how many jobs of the line ended before this one; Unix seconds; HMAC-SHA256 of all that in base64.
"""

import base64
import hashlib
import hmac
import re
from typing import NamedTuple

PATH = "/tasks/callback/"
_ID_PREFIX = "batch_req_"
_TOKEN = re.compile(r"([0-9a-f]{32})\.(0|[1-9]\d{0,8})\.([1-9]\d{0,11})\.([A-Za-z0-9_-]{43})", re.ASCII)


class Callback(NamedTuple):
    request_id: str
    ordinal: int
    expires_at: int  # Unix seconds

    @property
    def id(self) -> str:
        """Of the call: equal on every submit of this job."""
        return f"{self.request_id.removeprefix(_ID_PREFIX)}.{self.ordinal}"


def token_of(callback: Callback, secret: str) -> str:
    told = f"{callback.id}.{callback.expires_at}"
    return f"{told}.{_signature(told, secret)}"


def read_token(token: str, secret: str) -> Callback | None:
    """None where it was not made with this secret. Whether it has expired is the caller's to see."""
    found = _TOKEN.fullmatch(token)
    if found is None:
        return None
    told = token.rpartition(".")[0]
    if not hmac.compare_digest(found[4], _signature(told, secret)):
        return None
    return Callback(_ID_PREFIX + found[1], int(found[2]), int(found[3]))


def _signature(told: str, secret: str) -> str:
    digest = hmac.digest(secret.encode(), b"batchwright callback " + told.encode(), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
