"""Connections of the API process: malformed requests, limits, and interrupted transfers."""

import asyncio
import select
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest

from batchwright.contracts.api_objects.openai import FileObject, PartObject, UploadObject
from batchwright.database.driver import connect
from tests.constants import constants
from tests.fakes.api import LINE, error_of, read
from tests.integration.api.test_process import objects, running
from tests.integration.starter.stacks import until

pytestmark = pytest.mark.integration
MIB = 1024 * 1024
GET = b"GET /v1/files HTTP/1.1\r\nHost: api\r\n"


class Api:
    def __init__(self, pid: int, client: httpx.Client, folder: Path) -> None:
        self.client = client
        self.process = psutil.Process(pid)
        self._folder = folder

    def say(self, *pieces: bytes) -> bytes:
        """Send the pieces on a new connection until a response arrives. Return all received bytes."""
        with self.connected() as connection:
            for piece in pieces:
                if select.select([connection], [], [], 0.05)[0]:
                    break  # the response has arrived
                connection.sendall(piece)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def connected(self) -> socket.socket:
        connection = socket.create_connection((self.client.base_url.host, self.client.base_url.port or 0))
        connection.settimeout(240)
        return connection

    def rss(self) -> int:
        return self.process.memory_info().rss

    def left(self) -> int:
        """Return the number of stored objects, including unfinished ones, plus the number of file rows."""
        return len(objects(self._folder)) + len(self.client.get("/v1/files").json()["data"])


@contextmanager
def _shared(name: str, template_url: str, folder: Path, **limits: float) -> Generator[Api]:
    """Run an API process with the database `name`. Many tests share it, because none of them may harm it.

    After the API has rejected a request, it reads the rest of the request for up to four minutes. So a test
    that is delayed can still read the response.
    """
    server, _, template = template_url.rpartition("/")
    asyncio.run(_create(f"{server}/postgres", name, template))
    with (
        constants(linger_seconds=240, **limits),
        running(folder, database_url=f"{server}/{name}") as (process, client),
    ):
        yield Api(process.pid, client, folder)


async def _create(server: str, name: str, template: str) -> None:
    connection = await connect(server)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    await connection.close()


@pytest.fixture(scope="module")
def hasty_process(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    limits = {"header_seconds": 3, "stalled_seconds": 6, "body_seconds": 6}
    with _shared("hasty", postgres_url, tmp_path_factory.mktemp("hasty"), **limits) as api:
        yield api


@pytest.fixture(scope="module")
def patient_process(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    limits = {"header_seconds": 240, "stalled_seconds": 240, "body_seconds": 240}
    with _shared("patient", postgres_url, tmp_path_factory.mktemp("patient"), **limits) as api:
        yield api


@pytest.fixture
def hasty_api(hasty_process: Api) -> Generator[Api]:
    """An API that waits for clients only a few seconds, for tests that wait until it gives up."""
    yield from _emptied_afterwards(hasty_process)


@pytest.fixture
def api(patient_process: Api) -> Generator[Api]:
    """An API that waits for clients for minutes, so that a test that is delayed does not fail."""
    yield from _emptied_afterwards(patient_process)


def _emptied_afterwards(api: Api) -> Generator[Api]:
    yield api
    for file in api.client.get("/v1/files").json()["data"]:
        api.client.delete(f"/v1/files/{file['id']}")
    assert api.left() == 0


def form(content: Iterator[bytes], name: str = "file") -> Iterator[bytes]:
    yield (
        b'--cut\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' if name == "file" else b""
    )
    yield b'--cut\r\nContent-Disposition: form-data; name="%b"; filename="a"\r\n\r\n' % name.encode()
    yield from content
    yield b"\r\n--cut--\r\n"


def lines(size: int) -> Iterator[bytes]:
    piece = LINE * (MIB // len(LINE))
    for _ in range(size // len(piece)):
        yield piece


def post(api: Api, path: str, body: Iterator[bytes]) -> httpx.Response:
    """Send the body in chunks, without a content length. Return the response."""
    headers = {"Content-Type": "multipart/form-data; boundary=cut"}
    return api.client.post(path, content=body, headers=headers)


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"nonsense\r\n\r\n"], b"400"),
        ([GET + b"Bad Header\r\n\r\n"], b"400"),
        ([GET + b"X: " + b"x" * 30_000] * 40, b"431"),
        ([GET + b"X: " + b"x" * 40_000 + b"\r\nConnection: close\r\n\r\n"], b"431"),
    ],
    ids=["no HTTP", "broken header", "endless headers", "large headers"],
)
def test_an_invalid_http_request_gets_an_error_in_the_usual_format(
    api: Api, pieces: list[bytes], status: bytes
) -> None:
    assert_error(api.say(*pieces), status)


def test_headers_that_do_not_end_get_an_error_in_the_usual_format(hasty_api: Api) -> None:
    assert_error(hasty_api.say(GET), b"408")


def assert_error(answer: bytes, status: bytes) -> None:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert set(httpx.Response(400, content=body).json()["error"]) == {"message", "type", "param", "code"}


def test_a_silent_connection_is_closed(hasty_api: Api) -> None:
    assert hasty_api.say() == b""


def test_a_request_whose_body_stops_is_refused_and_leaves_nothing(hasty_api: Api) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n"
    content_type = b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
    piece = b"".join(form(lines(MIB)))[:-20]
    answer = hasty_api.say(head + content_type, b"%x\r\n%b\r\n" % (len(piece), piece))
    assert answer.split(b" ")[1] == b"408"
    assert hasty_api.left() == 0


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [(b"files", 10_000_000_000, b"413"), (b"uploads/upload_x/parts", 1_000, b"404"), (b"files", 10, b"100")],
    ids=["too large", "unknown upload", "welcome"],
)
def test_a_client_that_expects_100_continue_is_answered_at_once(
    hasty_api: Api, path: bytes, length: int, status: bytes
) -> None:
    kind = b"Content-Type: multipart/form-data; boundary=cut\r\nExpect: 100-continue\r\n"
    answer = hasty_api.say(
        b"POST /v1/%b HTTP/1.1\r\nHost: api\r\n%bContent-Length: %d\r\n\r\n" % (path, kind, length)
    )
    assert answer.split(b" ")[1] == status
    assert b"connection: close" in answer  # also for an expected body that was not sent


def test_an_unexpected_body_does_not_block_the_connection(hasty_api: Api) -> None:
    answer = hasty_api.say(GET + b"Content-Length: 1000000\r\n\r\n", b"x" * 10)
    assert answer.split(b" ")[1] == b"200"


def test_head_of_a_file_returns_its_length_and_keeps_the_connection(api: Api) -> None:
    file = read(post(api, "/v1/files", form(lines(MIB))), FileObject)
    path, close = (
        b"/v1/files/%b/content HTTP/1.1\r\nHost: api\r\n" % file.id.encode(),
        b"Connection: close\r\n\r\n",
    )
    answers = api.say(b"HEAD " + path + b"\r\n" + GET + close).split(b"HTTP/1.1 200")
    assert b"content-length: %d\r\n" % file.bytes in answers[1]
    assert answers[1].endswith(b"\r\n\r\n")
    assert file.id.encode() in answers[2]


def test_a_request_whose_body_trickles_is_refused_and_leaves_nothing(hasty_api: Api) -> None:
    """Each pause between two pieces of the body is shorter than the limit for a pause. The body as a whole is
    too slow.
    """
    head = b"POST /v1/files HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n"
    content_type = b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
    start = b"".join(form(iter(())))[:-12]
    assert (
        hasty_api.say(
            head + content_type, b"%x\r\n%b\r\n" % (len(start), start), *[b"1\r\nx\r\n"] * 600
        ).split(b" ")[1]
        == b"408"
    )
    assert hasty_api.left() == 0


CHUNKED = b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
SILENT = b"POST /v1/files HTTP/1.1\r\nHost: api\r\nContent-Type: multipart/form-data; boundary=cut\r\n"


@pytest.mark.parametrize(
    ("request_so_far", "status"),
    [
        (b"POST /v1/nothing HTTP/1.1\r\nHost: api\r\n" + CHUNKED, b"404"),
        (b"POST /v1/files HTTP/1.1\r\nHost: evil.example\r\n" + CHUNKED, b"421"),
        (b"POST /v1/batches HTTP/1.1\r\nHost: api\r\nX-Tenant: a/b\r\n" + CHUNKED, b"400"),
        (b"POST /v1/batches HTTP/1.1\r\nHost: api\r\n" + CHUNKED + b"200000\r\n" + b" " * 2 * MIB, b"413"),
        (SILENT + CHUNKED, b"408"),
        (GET + b"X: " + b"x" * MIB, b"431"),
        (b"nonsense\r\n\r\n", b"400"),
    ],
    ids=[
        "no such path",
        "foreign host",
        "no tenant",
        "large body",
        "silent body",
        "large headers",
        "no HTTP",
    ],
)
def test_a_client_that_continues_sending_after_a_refusal_is_not_reset(
    hasty_api: Api, request_so_far: bytes, status: bytes
) -> None:
    with hasty_api.connected() as connection:
        connection.sendall(request_so_far)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.split(b" ")[1] == status
        for _ in range(20):  # the first would cause a reset, the next one would fail
            connection.sendall(b"x" * 65536)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(65536) == b""
    assert hasty_api.left() == 0


def test_a_client_that_sends_without_end_after_a_refusal_is_cut_off(api: Api) -> None:
    with api.connected() as connection:
        connection.sendall(b"POST /v1/nothing HTTP/1.1\r\nHost: api\r\n" + CHUNKED)
        assert b"".join(iter(lambda: connection.recv(65536), b"")).split(b" ")[1] == b"404"
        assert _sent_before_the_end(connection, most=1024 * MIB) < 128 * MIB


def _sent_before_the_end(connection: socket.socket, most: int) -> int:
    sent = 0
    try:
        while sent < most:
            sent += connection.send(b"x" * MIB)
    except ConnectionError:
        pass
    return sent


def test_a_client_that_does_not_read_its_file_is_disconnected(hasty_api: Api) -> None:
    file = read(post(hasty_api, "/v1/files", form(lines(30 * MIB))), FileObject)
    with hasty_api.connected() as connection:
        connection.sendall(b"GET /v1/files/%b/content HTTP/1.1\r\nHost: api\r\n\r\n" % file.id.encode())
        until(lambda: is_open_at_server(hasty_api.process, connection))
        until(lambda: _received_end(hasty_api.process, connection, file.bytes))
    assert hasty_api.client.get("/healthz").status_code == 200


def is_open_at_server(server: psutil.Process, connection: socket.socket) -> bool:
    return any(
        other.laddr == connection.getpeername() and other.raddr == connection.getsockname()
        for other in server.net_connections("tcp")
        if other.status == psutil.CONN_ESTABLISHED and other.raddr
    )


def _received_end(server: psutil.Process, connection: socket.socket, size: int) -> bool:
    """Return True if the server gave up before it had sent the whole file, and False if it still sends."""
    if is_open_at_server(server, connection):
        return False
    received = 0
    try:
        while piece := connection.recv(MIB):
            received += len(piece)
    except ConnectionResetError:
        pass
    assert received < size
    return True


def test_200_mb_pass_through_in_bounded_memory(api: Api) -> None:
    post(api, "/v1/files", form(lines(2 * MIB)))  # memory that the first upload allocates stays
    before = api.rss()
    highest = [before]
    size = 199 * MIB

    def watched() -> Iterator[bytes]:
        for piece in lines(size):
            highest[0] = max(highest[0], api.rss())
            yield piece

    file = read(post(api, "/v1/files", form(watched())), FileObject)
    assert file.bytes > 198 * MIB
    assert highest[0] - before < 64 * MIB


def test_more_than_the_limit_is_refused_while_it_is_sent(api: Api) -> None:
    sent = [0]

    def endless() -> Iterator[bytes]:
        for piece in lines(4096 * MIB):
            sent[0] += len(piece)
            yield piece

    try:
        answer = post(api, "/v1/files", form(endless()))
        assert (answer.status_code, error_of(answer).param) == (413, "file")
    except httpx.WriteError:
        pass  # the server closed the connection before the client had sent everything
    assert sent[0] < 400 * MIB
    assert api.left() == 0


def an_upload(api: Api, size: int) -> UploadObject:
    body = {"filename": "a.jsonl", "purpose": "batch", "bytes": size, "mime_type": "application/jsonl"}
    return read(api.client.post("/v1/uploads", json=body), UploadObject)


def test_parts_are_joined_in_bounded_memory(api: Api) -> None:
    piece = b"".join(lines(60 * MIB))
    upload = an_upload(api, 3 * len(piece))
    path = f"/v1/uploads/{upload.id}"
    parts = [read(post(api, path + "/parts", form(iter([piece]), "data")), PartObject).id for _ in range(3)]
    before = api.rss()
    done = read(api.client.post(path + "/complete", json={"part_ids": parts}), UploadObject)
    assert done.file is not None
    assert done.file.bytes == 3 * len(piece)
    assert api.rss() - before < 64 * MIB
    assert api.left() == 2  # the file and its row, no part


@pytest.mark.parametrize("cut", ["file", "part", "first"])
def test_a_client_that_hangs_up_leaves_nothing(api: Api, cut: str) -> None:
    upload = an_upload(api, MIB)
    path = f"/v1/uploads/{upload.id}/parts" if cut == "part" else "/v1/files"
    whole = b"".join(form(lines(3 * MIB), "data" if cut == "part" else "file"))
    sent = whole[:100] if cut == "first" else whole[:-30]
    head = f"POST {path} HTTP/1.1\r\nHost: api\r\nContent-Length: {len(whole)}\r\n"
    with api.connected() as connection:
        connection.sendall(head.encode() + b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n" + sent)
        until(_seen(api))
    until(lambda: api.left() == 0)
    assert api.client.get("/healthz").status_code == 200


def _seen(api: Api) -> Callable[[], bool]:
    return lambda: api.left() > 0  # the object being written
