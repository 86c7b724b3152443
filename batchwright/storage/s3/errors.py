"""Translates errors of S3 and of the network to storage errors, whose messages name a remedy."""

import aiohttp
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    SSLError,
    SSOError,
)
from botocore.exceptions import (
    ConnectionError as NoConnection,
)
from botocore.parsers import ResponseParserError

from batchwright.storage.base import ObjectMissing, StorageError, StorageFull, StorageUnavailable

S3_ERRORS = (ClientError, BotoCoreError, ResponseParserError, aiohttp.ClientError, TimeoutError)
NO_SUCH_UPLOAD = "NoSuchUpload"

_CONNECTION_ERRORS = (
    HTTPClientError,
    NoConnection,
    IncompleteReadError,
    ResponseParserError,
    aiohttp.ClientError,
    TimeoutError,
)
_TRANSIENT = {
    "RequestTimeout",
    "OperationAborted",
    "BadDigest",
    "IncompleteBody",
    "XAmzContentSHA256Mismatch",
}
_THROTTLING = {"SlowDown", "Throttling", "ThrottlingException", "RequestLimitExceeded", "TooManyRequests"}
_FULL = {"QuotaExceeded", "XMinioStorageFull", "InsufficientStorage", "InsufficientCapacity"}
_FULL_STATUS, _NOT_IMPLEMENTED = 507, 501

_KEYS = "the keys are wrong: correct AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile"
_EXPIRED = "the credentials have expired: renew them"
_REGION = "the bucket is in another region: correct BATCHWRIGHT_S3_REGION"
_DENIED = (
    "access is denied: allow s3:GetObject, s3:PutObject, s3:DeleteObject, s3:AbortMultipartUpload, "
    "s3:ListBucket and s3:ListBucketMultipartUploads there"
)
_REMEDIES = {
    "NoSuchBucket": "there is no such bucket: create it, or correct BATCHWRIGHT_STORAGE",
    "AccessDenied": _DENIED,
    "403": _DENIED,
    "InvalidAccessKeyId": _KEYS,
    "SignatureDoesNotMatch": _KEYS,
    "InvalidToken": _KEYS,
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "301": _REGION,
    "RequestTimeTooSkewed": "the clocks differ too much: correct this machine's clock",
    "NotImplemented": "the server does not support this: check BATCHWRIGHT_S3_SSE",
    "404": "this is not an answer of S3: correct BATCHWRIGHT_S3_ENDPOINT_URL, or the proxy in front of S3",
    NO_SUCH_UPLOAD: "the upload was aborted: a sweep or a lifecycle rule of the bucket runs too early",
}

_DENIED_OBJECT = (
    "access is denied: check that there is such an object, and that the credentials of Batchwright allow "
    "s3:GetObject on it, s3:ListBucket on its bucket, and kms:Decrypt if it is encrypted with a KMS key"
)
# Why S3 refuses one object, by error code.
_REFUSALS = {
    "AccessDenied": _DENIED_OBJECT,
    "AllAccessDisabled": _DENIED_OBJECT,
    "InvalidObjectState": "it is archived: restore it first",
    "NoSuchBucket": "there is no such bucket: check its name",
}
_DENIED_LOCATION = (
    "access is denied: check that the credentials of Batchwright allow s3:PutObject there, and "
    "kms:GenerateDataKey if its bucket is encrypted with a KMS key"
)
_BAD_REQUEST = 400


def error_code(error: BaseException) -> str:
    """Return the error code of S3, such as NoSuchKey; empty if the error did not come from S3.

    If the request was a HEAD request, the code is only the HTTP status, such as 404.
    """
    if not isinstance(error, ClientError):
        return ""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_transient(error: BaseException) -> bool:
    """Return True if `error` is temporary, so that a retry of the failed operation may succeed."""
    if isinstance(error, ClientError):
        status = _status_of(error)
        if status in (_FULL_STATUS, _NOT_IMPLEMENTED) or error_code(error) in _FULL:
            return False
        return status >= 500 or status == 429 or error_code(error) in _TRANSIENT | _THROTTLING
    if isinstance(error, SSLError):
        return False
    return isinstance(
        error,
        HTTPClientError | IncompleteReadError | ResponseParserError | aiohttp.ClientError | TimeoutError,
    )


def refusal_of(error: BaseException | None) -> str:
    """Return why S3 refuses to return the requested object, in words that say what to check.

    Return an empty string in these two cases:

    - The error is transient.
    - A request for any other object would fail, too, for example because the credentials are wrong.

    Args:
        error: the error of a request for an object.
    """
    if not isinstance(error, ClientError):
        return ""
    code = error_code(error)
    if code in _REFUSALS:
        return f"{_REFUSALS[code]} ({code})"
    if _status_of(error) != _BAD_REQUEST or code in _REMEDIES or is_transient(error):
        return ""
    if code.startswith("KMS."):
        return f"its encryption key cannot be used: check that the KMS key exists and is enabled ({code})"
    return (
        f"the request needs something that Batchwright does not have: check whether the object is encrypted "
        f"with a key that each request must contain (SSE-C) ({code})"
    )


def write_refusal_of(error: BaseException | None) -> str:
    """Return why S3 refuses to write an object, in words that say what to check.

    Return an empty string in these two cases:

    - The error is transient.
    - A write to any other bucket would fail, too, for example because the credentials are wrong.

    Args:
        error: the error of a request that writes an object.
    """
    code = error_code(error) if error is not None else ""
    if code in ("AccessDenied", "AllAccessDisabled"):
        return f"{_DENIED_LOCATION} ({code})"
    if code == "NoSuchBucket":
        return f"{_REFUSALS[code]} ({code})"
    if code.startswith("KMS."):
        return f"the bucket's encryption key cannot be used: check that it exists and is enabled ({code})"
    return ""


def to_storage_error(
    error: Exception, doing: str, key: str, place: str, *, is_write: bool = False
) -> StorageError:
    """Translate an error of S3 to a StorageError, and return it.

    Args:
        error: one of S3_ERRORS.
        doing: the failed action, such as `read`, for the message.
        key: key of the object; empty if the action is about the whole storage.
        place: URL of the storage, for the message.
        is_write: True if the action writes the object. An error that says that the object is missing (404)
            then becomes StorageUnavailable, not ObjectMissing. S3 never answers a write with this error, so
            the answer comes from another program, such as a proxy.
    """
    code = error_code(error)
    if code in ("NoSuchKey", "404") and not is_write:
        return ObjectMissing(f"There is no object {key!r} in {place}.")
    what = f"Cannot {doing} {key!r} in {place}" if key else f"Cannot {doing} {place}"
    if code in _FULL or _status_of(error) == _FULL_STATUS:
        return StorageFull(f"{what}: the storage is full. Free some space or raise its quota.")
    return StorageUnavailable(f"{what}: {_reason(error, code)}.")


def _reason(error: Exception, code: str) -> str:
    if code.startswith("KMS."):
        return f"the encryption key cannot be used ({code}): correct BATCHWRIGHT_S3_SSE_KMS_KEY_ID"
    if isinstance(error, ClientError):
        answer = str(error.response.get("Error", {}).get("Message", "")).rstrip(".")
        said = f"S3 answers {_status_of(error)} {code}" + (f" ({answer})" if answer else "")
        return f"{_REMEDIES[code]} ({code})" if code in _REMEDIES else said
    if isinstance(error, NoCredentialsError):
        return (
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role"
        )
    if isinstance(error, CredentialRetrievalError | PartialCredentialsError | SSOError):
        return f"the credentials cannot be loaded: {str(error).rstrip('.')}"
    if isinstance(error, _CONNECTION_ERRORS):
        text = str(error).rstrip(".") or "no answer in time"
        return f"S3 cannot be reached: {text}; check BATCHWRIGHT_S3_ENDPOINT_URL and the network"
    return str(error).rstrip(".")


def _status_of(error: BaseException) -> int:
    if not isinstance(error, ClientError):
        return 0
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
