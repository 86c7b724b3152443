"""Pages that sign a visitor in with an API key, and sign the visitor out."""

import logging

from starlette.responses import RedirectResponse, Response

from batchwright.api.auth.authenticators import AccessDenied, ApiKeyAuthenticator
from batchwright.api.auth.sessions import SESSION_LIFETIME, Sessions
from batchwright.api.errors import ApiError
from batchwright.api.ui.visit import COOKIE, PREFIX, Page, Visit, see_other, set_cookie
from batchwright.rules.tenants.api_keys import parse_key
from batchwright.telemetry.context import add_fields
from batchwright.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


class SessionPages:
    def __init__(self, sessions: Sessions, keys: ApiKeyAuthenticator, metrics: Metrics) -> None:
        self._sessions, self._keys, self._metrics = sessions, keys, metrics

    def table(self) -> dict[str, Page]:
        return {"GET /sign-in": self.form, "POST /sign-in": self.sign_in, "POST /sign-out": self.sign_out}

    async def form(self, visit: Visit) -> Response:
        return visit.page("sign_in.html", title="Sign in", next=visit.argument("next"), problem="")

    async def sign_in(self, visit: Visit) -> Response:
        form = await visit.form()
        address = visit.request.client.host if visit.request.client else ""
        try:
            key = await self._keys.row_of(parse_key(form.get("key", "")), address)
        except ApiError as error:
            reason = error.reason if isinstance(error, AccessDenied) else "header"
            add_fields(refused=reason)
            self._metrics.api_refusals.labels(reason).inc()
            logger.warning("sign-in refused", extra={"address": address, "reason": reason})
            context = {"next": form.get("next", ""), "problem": error.message}
            return visit.page("sign_in.html", error.status, title="Sign in", **context)
        await self._sessions.end(visit.token)
        response = RedirectResponse(_own_page(form.get("next", "")), 303)
        # A new token, so that a token that an attacker has put into this browser is useless.
        set_cookie(response, visit.request, await self._sessions.start(key), SESSION_LIFETIME)
        return response

    async def sign_out(self, visit: Visit) -> Response:
        await visit.form()
        await self._sessions.end(visit.token)
        response = see_other("/sign-in")
        response.delete_cookie(COOKIE, path=PREFIX)
        return response


def _own_page(target: str) -> str:
    """Return `target` if it is the path of a page at `/ui`. Otherwise return the path of the start page."""
    is_own = target.startswith(PREFIX + "/") and "\\" not in target
    return target if is_own else f"{PREFIX}/batches"
