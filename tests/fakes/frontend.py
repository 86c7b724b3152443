"""Fake Temporal frontend that requires credentials.

It forwards accepted calls to a Temporal server without credentials.
"""

from __future__ import annotations  # grpc's classes take type arguments in its stubs only

from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc
import grpc.aio
import trustme

_FOREVER_SECONDS = 70.0  # longer than a long poll


class Authority:
    """The certificate authority of a test.

    It issues one certificate for the server, and any number of client certificates.
    """

    def __init__(self) -> None:
        self._ca = trustme.CA()
        self._server = self._ca.issue_cert("127.0.0.1")
        self.pem = self._ca.cert_pem.bytes()

    @property
    def server(self) -> tuple[bytes, bytes]:
        """The server's private key and its certificate chain, both as PEM."""
        chain = b"".join(blob.bytes() for blob in self._server.cert_chain_pems)
        return self._server.private_key_pem.bytes(), chain

    def client(self) -> tuple[bytes, bytes]:
        """Issue a client certificate. Return the certificate chain and its private key, both as PEM."""
        certificate = self._ca.issue_cert("worker.example")
        return b"".join(
            blob.bytes() for blob in certificate.cert_chain_pems
        ), certificate.private_key_pem.bytes()


@dataclass
class Frontend:
    """A frontend and the credentials that it requires.

    A test may change all fields while the frontend runs, except `tls`.

    Attributes:
        behind: address of the server to which calls are forwarded.
        port: port of the frontend; 0 chooses a free port.
        tls: authority that issued the server's certificate; None disables TLS.
        api_key: key that callers must send; empty if no key is required.
        seen_keys: keys that callers have sent.
    """

    behind: str
    port: int = 0
    tls: Authority | None = None
    clients: Authority | None = None  # who signs the certificates of clients, where they need one
    api_key: str = ""
    refused: Collection[str] = ()  # methods that nobody may call, such as RegisterNamespace
    seen_keys: set[str] = field(default_factory=set[str])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with grpc.aio.insecure_channel(self.behind) as channel:
            server = grpc.aio.server()
            server.add_generic_rpc_handlers((_Everything(self, channel),))
            address = f"127.0.0.1:{self.port}"
            credentials = self._credentials()
            self.port = (
                server.add_secure_port(address, credentials)
                if credentials
                else server.add_insecure_port(address)
            )
            await server.start()
            try:
                yield
            finally:
                await server.stop(None)

    def _credentials(self) -> grpc.ServerCredentials | None:
        if self.tls is None:
            return None
        clients = self.clients.pem if self.clients else None
        return grpc.ssl_server_credentials([self.tls.server], clients, clients is not None)


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, frontend: Frontend, channel: grpc.aio.Channel) -> None:
        self._frontend, self._channel = frontend, channel

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        async def pass_on(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
            return await self._pass_on(handler_call_details.method, request, context)

        return grpc.unary_unary_rpc_method_handler(pass_on)

    async def _pass_on(
        self, method: str, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        frontend = self._frontend
        metadata = {name: str(value) for name, value in context.invocation_metadata() or ()}
        if frontend.api_key:
            key = metadata.get("authorization", "").removeprefix("Bearer ")
            frontend.seen_keys.add(key)
            if key != frontend.api_key:
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request unauthenticated.")
        if method.rpartition("/")[2] in frontend.refused:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "Request unauthorized.")
        try:
            ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(method)
            return await ask(request, timeout=_FOREVER_SECONDS)
        except grpc.aio.AioRpcError as error:
            trailing = [(name, value) for name, value in error.trailing_metadata() if name.endswith("-bin")]
            context.set_trailing_metadata(tuple(trailing))
            await context.abort(error.code(), error.details() or "")
