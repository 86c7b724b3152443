"""The API's sockets: what never becomes a request, what is too much, and what breaks off."""

import asyncio
import select
import socket
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from api.objects import FileObject, PartObject, UploadObject
from batchwright.database.driver import connect
from tests.fakes.api import LINE, error_of, read
from tests.integration.stacks import until
from tests.integration.test_api_process import objects, running

pytestmark = pytest.mark.integration
MIB = 1024 * 1024
GET = b"GET /v1/files HTTP/1.1\r\nHost: api\r\n"


class Api:
    def __init__(self, pid: int, client: httpx.Client, folder: Path) -> None:
        self.client = client
        self._process = psutil.Process(pid)
        self._folder = folder

    def say(self, *pieces: bytes) -> bytes:
        """Sends the pieces over a connection of their own until it is answered; all that comes back."""
        with self.connected() as connection:
            for piece in pieces:
                if select.select([connection], [], [], 0.05)[0]:
                    break  # it is answered already
                connection.sendall(piece)
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def connected(self) -> socket.socket:
        connection = socket.create_connection((self.client.base_url.host, self.client.base_url.port or 0))
        connection.settimeout(240)
        return connection

    def rss(self) -> int:
        return self._process.memory_info().rss

    def left(self) -> int:
        """How many objects, unfinished ones too, and rows of files there are."""
        return len(objects(self._folder)) + len(self.client.get("/v1/files").json()["data"])


@pytest.fixture(scope="module")
def shared_api(postgres_url: str, tmp_path_factory: pytest.TempPathFactory) -> Generator[Api]:
    """One process for all: none of these tests may harm it."""
    folder, server = tmp_path_factory.mktemp("api"), postgres_url.rpartition("/")[0]
    asyncio.run(_create(f"{server}/postgres", postgres_url.rpartition("/")[2]))
    bounds = {
        "api_header_seconds": "3",
        "api_silence_seconds": "6",
    }  # longer than this process may be held up
    with running(folder, database_url=f"{server}/connections", **bounds) as (process, client):
        yield Api(process.pid, client, folder)


async def _create(server: str, template: str) -> None:
    connection = await connect(server)
    await connection.execute(f"CREATE DATABASE connections TEMPLATE {template}")
    await connection.close()


@pytest.fixture
def api(shared_api: Api) -> Generator[Api]:
    yield shared_api
    for file in shared_api.client.get("/v1/files").json()["data"]:
        shared_api.client.delete(f"/v1/files/{file['id']}")
    assert shared_api.left() == 0


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
    """Chunked: nothing announces the length."""
    headers = {"Content-Type": "multipart/form-data; boundary=cut"}
    return api.client.post(path, content=body, headers=headers, timeout=60)


@pytest.mark.parametrize(
    ("pieces", "status"),
    [
        ([b"nonsense\r\n\r\n"], b"400"),
        ([GET + b"Bad Header\r\n\r\n"], b"400"),
        ([GET], b"408"),
        ([GET + b"X: " + b"x" * 30_000] * 40, b"431"),
        ([GET + b"X: " + b"x" * 40_000 + b"\r\nConnection: close\r\n\r\n"], b"431"),
    ],
    ids=["no HTTP", "broken header", "headers that do not end", "endless headers", "large headers"],
)
def test_what_is_no_request_is_answered_in_the_shape_of_every_error(
    api: Api, pieces: list[bytes], status: bytes
) -> None:
    head, _, body = api.say(*pieces).partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert set(httpx.Response(400, content=body).json()["error"]) == {"message", "type", "param", "code"}


def test_a_connection_that_says_nothing_is_closed(api: Api) -> None:
    assert api.say() == b""


def test_a_body_that_stops_is_answered_and_leaves_nothing(api: Api) -> None:
    head = b"POST /v1/files HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n"
    content_type = b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
    piece = b"".join(form(lines(MIB)))[:-20]
    answer = api.say(head + content_type, b"%x\r\n%b\r\n" % (len(piece), piece))
    assert answer.split(b" ")[1] == b"408"
    assert api.left() == 0


@pytest.mark.parametrize(
    ("path", "length", "status"),
    [(b"files", 10_000_000_000, b"413"), (b"uploads/upload_x/parts", 1_000, b"404"), (b"files", 10, b"100")],
    ids=["too large", "unknown upload", "welcome"],
)
def test_a_client_that_asks_before_it_sends_is_told_at_once(
    api: Api, path: bytes, length: int, status: bytes
) -> None:
    kind = b"Content-Type: multipart/form-data; boundary=cut\r\nExpect: 100-continue\r\n"
    answer = api.say(
        b"POST /v1/%b HTTP/1.1\r\nHost: api\r\n%bContent-Length: %d\r\n\r\n" % (path, kind, length)
    )
    assert answer.split(b" ")[1] == status
    assert b"connection: close" in answer  # of the welcome one that sends nothing then, too


def test_a_body_nobody_asked_for_does_not_hold_the_connection(api: Api) -> None:
    answer = api.say(GET + b"Content-Length: 1000000\r\n\r\n", b"x" * 10)
    assert answer.split(b" ")[1] == b"200"


def test_head_of_a_file_tells_its_length_and_the_connection_serves_on(api: Api) -> None:
    file = read(post(api, "/v1/files", form(lines(MIB))), FileObject)
    path, close = (
        b"/v1/files/%b/content HTTP/1.1\r\nHost: api\r\n" % file.id.encode(),
        b"Connection: close\r\n\r\n",
    )
    answers = api.say(b"HEAD " + path + b"\r\n" + GET + close).split(b"HTTP/1.1 200")
    assert b"content-length: %d\r\n" % file.bytes in answers[1]
    assert answers[1].endswith(b"\r\n\r\n")
    assert file.id.encode() in answers[2]


def test_a_body_that_trickles_is_answered_and_leaves_nothing(api: Api) -> None:
    """Its silences are shorter than any that is refused."""
    head = b"POST /v1/files HTTP/1.1\r\nHost: api\r\nTransfer-Encoding: chunked\r\n"
    content_type = b"Content-Type: multipart/form-data; boundary=cut\r\n\r\n"
    start = b"".join(form(iter(())))[:-12]
    assert (
        api.say(head + content_type, b"%x\r\n%b\r\n" % (len(start), start), *[b"1\r\nx\r\n"] * 600).split(
            b" "
        )[1]
        == b"408"
    )
    assert api.left() == 0


def test_a_client_that_does_not_read_its_file_is_let_go(api: Api) -> None:
    file = read(post(api, "/v1/files", form(lines(30 * MIB))), FileObject)
    with api.connected() as connection:
        connection.sendall(b"GET /v1/files/%b/content HTTP/1.1\r\nHost: api\r\n\r\n" % file.id.encode())
        until(lambda: _received_end(connection, file.bytes))
    assert api.client.get("/healthz").status_code == 200


def _received_end(connection: socket.socket, size: int) -> bool:
    """Reads only once the server has given up: it must not have sent the whole file by then."""
    gone = not any(
        other.laddr == connection.getpeername() and other.raddr == connection.getsockname()
        for other in psutil.net_connections("tcp")
        if other.status == psutil.CONN_ESTABLISHED and other.raddr
    )
    if not gone:
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
    post(api, "/v1/files", form(lines(2 * MIB)))  # what the first upload brings into memory stays
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
        pass  # the connection was closed before this client had sent all it wanted
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
    done = read(api.client.post(path + "/complete", json={"part_ids": parts}, timeout=60), UploadObject)
    assert done.file is not None
    assert done.file.bytes == 3 * len(piece)
    assert api.rss() - before < 64 * MIB
    assert api.left() == 2  # the file and its row: no part is left


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
    return lambda: api.left() > 0  # the object that is being written
