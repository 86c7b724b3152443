"""Handles unknown query parameters of GET requests.

If the setting `profile` is `strict`, the request is rejected. If `profile` is `relaxed`, a response header
lists the unknown parameters.
"""

from collections.abc import Sequence
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import MutableHeaders, QueryParams
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from batchwright.api.errors import error_response, unknown_parameter
from batchwright.contracts.terms import Profile

WARNING_HEADER = "x-batchwright-warning"
_EVERYWHERE = frozenset({"api-version"})  # clients of Azure OpenAI send it with each request
_MAX_NAMES = 10
_MAX_NAME_LENGTH = 64


class QueryParametersMiddleware:
    """A middleware that rejects unknown query parameters of GET requests, or warns about them.

    Without this check, a list request with a misspelt filter would return everything. A parameter is known
    if the route's function, or a dependency of this function, declares the parameter. A map parameter, such
    as `metadata[key]`, is known if the route's `openapi_extra` describes it with the style `deepObject`.
    """

    def __init__(self, app: ASGIApp, routers: Sequence[APIRouter], profile: Profile) -> None:
        self._app, self._profile = app, profile
        routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
        self._known = [(route, *_names(route)) for route in routes if "GET" in (route.methods or ())]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unknown = self._unknown(scope)
        if not unknown:
            await self._app(scope, receive, send)
        elif self._profile is Profile.STRICT:
            await error_response(unknown_parameter(unknown[0]))(scope, receive, send)
        else:
            await self._app(scope, receive, _with_warning(send, unknown))

    def _unknown(self, scope: Scope) -> list[str]:
        if scope["type"] != "http" or scope["method"] != "GET" or not scope["query_string"]:
            return []
        for route, names, maps in self._known:
            if route.matches(scope)[0] is Match.FULL:
                sent = QueryParams(scope["query_string"])
                return [name for name in sent if name not in names and not name.startswith(maps)]
        return []


def _names(route: APIRoute) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names of a route's query parameters, and the prefixes of its map parameters.

    The prefix of the map parameter `metadata[key]` is `metadata[`.
    """
    names = _query_names(route.dependant)
    extra = (route.openapi_extra or {}).get("parameters", [])
    maps = [each["name"] for each in extra if each.get("style") == "deepObject"]
    return frozenset({*names, *maps}) | _EVERYWHERE, tuple(f"{name}[" for name in maps)


def _query_names(dependant: Dependant) -> frozenset[str]:
    """Return the names of the query parameters that a function and its dependencies declare."""
    own = (field.alias for field in dependant.query_params)
    return frozenset(own).union(*map(_query_names, dependant.dependencies))


def _with_warning(send: Send, unknown: list[str]) -> Send:
    """Return a function that sends a response with `send`, and adds a warning header to the response. The
    header lists the first `_MAX_NAMES` names in `unknown`.
    """
    named = ", ".join(quote(name[:_MAX_NAME_LENGTH], safe="[]") for name in unknown[:_MAX_NAMES])

    async def warn(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message)[WARNING_HEADER] = f"Ignored query parameters: {named}"
        await send(message)

    return warn
