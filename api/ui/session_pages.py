"""Sign-in with an API key, and sign-out."""

from starlette.responses import RedirectResponse, Response

from batchwright.api.auth.authenticators import ApiKeyAuthenticator
from batchwright.api.auth.sessions import Sessions
from batchwright.api.errors import ApiError
from batchwright.api.ui.rendering import Renderer
from batchwright.api.ui.visit import COOKIE, PREFIX, Visit, set_cookie
from batchwright.rules.api_keys import parse_key

SIGN_IN = f"{PREFIX}/sign-in"


class SessionPages:
    def __init__(self, renderer: Renderer, sessions: Sessions, keys: ApiKeyAuthenticator) -> None:
        self._renderer, self._sessions, self._keys = renderer, sessions, keys

    async def form(self, visit: Visit) -> Response:
        return self._renderer.page(visit, "sign_in.html", {"next": visit.argument("next"), "problem": ""})

    async def sign_in(self, visit: Visit) -> Response:
        form = await visit.form()
        client = visit.request.client
        try:
            key = await self._keys.row_of(parse_key(form.get("key", "")), client.host if client else "")
        except ApiError as error:
            context = {"next": form.get("next", ""), "problem": error.message}
            return self._renderer.page(visit, "sign_in.html", context, error.status)
        await self._sessions.end(visit.token)
        response = RedirectResponse(_own_page(form.get("next", "")), 303)
        # A new token, so that a token which somebody else has put into this browser is worth nothing.
        set_cookie(response, visit.request, await self._sessions.start(key))
        return response

    async def sign_out(self, visit: Visit) -> Response:
        await visit.form()
        await self._sessions.end(visit.token)
        response = RedirectResponse(SIGN_IN, 303)
        response.delete_cookie(COOKIE, path=PREFIX)
        return response


def _own_page(target: str) -> str:
    """Return `target` if it is a page of this site, and the start page otherwise."""
    is_own = target.startswith(PREFIX + "/") and "\\" not in target
    return target if is_own else f"{PREFIX}/batches"
