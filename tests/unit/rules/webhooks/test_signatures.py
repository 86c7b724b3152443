"""Signatures of webhooks, verified by the official client."""

import base64
import time

import pytest
from openai import InvalidWebhookSignatureError, OpenAI

from batchwright.rules.webhooks.signatures import check_secret, new_secret, signed_headers

BODY = b'{"object":"event","id":"evt_1","type":"batch.completed","created_at":1,"data":{"id":"batch_1"}}'
OLD, NEW = new_secret(b"o" * 32), new_secret(b"n" * 32)


def accepts(secret: str, headers: dict[str, str], body: bytes = BODY) -> bool:
    try:
        OpenAI(api_key="none").webhooks.verify_signature(body.decode(), headers, secret=secret)
    except InvalidWebhookSignatureError:
        return False
    return True


def headers_of(*secrets: str, late: int = 0) -> dict[str, str]:
    return signed_headers(secrets, "wh_1", int(time.time()) - late, BODY)


def test_the_headers_are_those_of_standard_webhooks() -> None:
    headers = signed_headers([NEW], "wh_1", 1_700_000_000, BODY)
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("wh_1", "1700000000")
    version, _, signature = headers["webhook-signature"].partition(",")
    assert (version, len(base64.b64decode(signature))) == ("v1", 32)


def test_the_known_signature_of_the_specification_is_made() -> None:
    """The example is from the reference implementations of Standard Webhooks."""
    headers = signed_headers(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1614265330,
        b'{"test": 2432232314}',
    )
    assert headers["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_while_a_secret_is_replaced_receivers_with_either_one_accept() -> None:
    headers = headers_of(NEW, OLD)
    assert accepts(NEW, headers)
    assert accepts(OLD, headers)
    assert not accepts(OLD, headers_of(NEW))


@pytest.mark.parametrize(
    ("secret", "late", "body"),
    [(NEW, 301, BODY), (NEW, 0, b"{}"), (OLD, 0, BODY)],
    ids=["late", "body", "secret"],
)
def test_the_official_client_refuses_anything_else(secret: str, late: int, body: bytes) -> None:
    assert not accepts(secret, headers_of(NEW, late=late), body)


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "abc", "whsec_ü", "whsec_!!!", new_secret(b"k" * 23), new_secret(b"k" * 65)]
)
def test_a_secret_of_the_wrong_form_or_length_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(ValueError, match="whsec_ followed by") as refused:
        check_secret(secret)
    assert len(secret) < 10 or secret not in str(refused.value)


def test_a_secret_of_24_bytes_is_accepted() -> None:
    check_secret(new_secret(b"k" * 24))
