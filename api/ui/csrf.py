"""Protects the pages against forms from other sites (CSRF). Checks a form's token, and the site that sent the
form.
"""

import hmac

from markupsafe import Markup
from starlette.requests import Request

from batchwright.api.errors import ApiError

FIELD = "csrf"  # name of the form field with the token


def csrf_token(cookie: str) -> str:
    """Return the token that each form of the pages contains. It shows that the form was not made by another
    site.

    The token is derived from the visitor's cookie. Other sites cannot read this cookie, so they cannot make a
    valid form.
    """
    return hmac.digest(cookie.encode(), b"csrf", "sha256").hex()


def csrf_field(token: str) -> Markup:
    """Return the HTML of the hidden form field that contains the token."""
    return Markup(f'<input type="hidden" name="{FIELD}" value="{{}}">').format(token)


def check_token(sent: str, token: str) -> None:
    """Check that the token in a form is the visitor's token.

    Raises:
        ApiError: the token is not the visitor's (403).
    """
    if not hmac.compare_digest(sent.encode(), token.encode()):
        raise ApiError(403, "This form is no longer valid. Open the page again, and repeat what you did.")


def check_site(request: Request) -> None:
    """Check that a form was not sent by another site. If the browser does not report the site (in the header
    `Sec-Fetch-Site`), accept the form.

    A form from another site could sign the visitor in with another person's key.

    Raises:
        ApiError: another site sent the form (403).
    """
    if request.method == "POST" and request.headers.get("sec-fetch-site") in ("cross-site", "same-site"):
        raise ApiError(403, "Another site sent this form. Open the page here, and repeat what you did.")
