"""Requests over aiohttp behind httpx's transport interface, with the errors kept apart (R20).

never sent          httpx.ConnectError, httpx.ConnectTimeout
sent, no answer     httpx.ReadTimeout, httpx.RemoteProtocolError, httpx.ReadError
"""

import contextlib
from collections.abc import AsyncIterator, Generator

import aiohttp
import httpx

_CHUNK = 256 * 1024


class AiohttpTransport(httpx.AsyncBaseTransport):
    """`connections` bounds open sockets; timeouts come from each request's `timeout` extension."""

    def __init__(self, *, connections: int) -> None:
        self._connections = connections
        self._session: aiohttp.ClientSession | None = None

    def _open(self) -> aiohttp.ClientSession:
        """Made at the first request, inside the loop it serves."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=self._connections, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=True,
                skip_auto_headers=("User-Agent",),
            )
        return self._session

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        with _as_httpx(request):
            answer = await self._open().request(
                request.method,
                str(request.url),
                data=request.content,
                headers=dict(request.headers),
                allow_redirects=False,
                timeout=_timeout(request),
            )
        headers = [(k, v) for k, v in answer.raw_headers if k.lower() not in _UNPACKED]
        return httpx.Response(answer.status, headers=headers, stream=_Body(request, answer), request=request)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None


_UNPACKED = (b"content-encoding", b"content-length", b"transfer-encoding")


class _Body(httpx.AsyncByteStream):
    def __init__(self, request: httpx.Request, answer: aiohttp.ClientResponse) -> None:
        self._request, self._answer = request, answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _as_httpx(self._request):
            async for chunk in self._answer.content.iter_chunked(_CHUNK):
                yield chunk

    async def aclose(self) -> None:
        """Gives the connection back where the answer was read whole; else it is closed."""
        if self._answer.content.is_eof():
            self._answer.release()
        else:
            self._answer.close()


def _timeout(request: httpx.Request) -> aiohttp.ClientTimeout:
    given: dict[str, float | None] = request.extensions.get("timeout", {})
    return aiohttp.ClientTimeout(total=None, sock_connect=given.get("connect"), sock_read=given.get("read"))


@contextlib.contextmanager
def _as_httpx(request: httpx.Request) -> Generator[None]:
    """aiohttp's error classes, most specific first, as httpx's."""
    try:
        yield
    except aiohttp.ConnectionTimeoutError as error:
        raise httpx.ConnectTimeout(_text(error), request=request) from error
    except (aiohttp.SocketTimeoutError, TimeoutError) as error:
        raise httpx.ReadTimeout(_text(error), request=request) from error
    except (aiohttp.ClientConnectorError, aiohttp.InvalidURL) as error:
        raise httpx.ConnectError(_text(error), request=request) from error
    except aiohttp.ClientPayloadError as error:
        raise httpx.ReadError(_text(error), request=request) from error
    except (aiohttp.ClientError, ConnectionError) as error:
        raise httpx.RemoteProtocolError(_text(error), request=request) from error


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
