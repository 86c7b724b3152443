"""Bad responses, failing connections, bad jobs and failing hooks, in a whole stack.

Each of them affects only its own line.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Set
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import pytest
import trustme
from openai.types import Batch
from pydantic import BaseModel

from batchwright.contracts.errors import LineCode
from batchwright.rules.dispatch.retry_policy import Budget
from batchwright.starter.embedded_stack.ports import free_port
from docs.error_codes import ANSWER_OUTCOMES, AnswerOutcome
from tests.clients import http_client
from tests.constants import python_path, with_constants
from tests.e2e.bad_jobs import BAD_JOBS
from tests.e2e.batches import ENDED, ResultLine, check_conservation, ended, lines_of, submit, until
from tests.e2e.stack import MODELS, Stack, dev
from tests.fakes import hostile_backends
from tests.fakes.bad_lines import BadLines
from tests.fakes.certificates import server_context
from tests.fakes.hostile_backends import CHAT, EMBEDDINGS, LIMIT, Bad, request_body, response
from tests.fakes.raw_servers import read_request, served
from tests.unit.simulator.simulators import serving

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
POISON, EACH, ATTEMPTS = "poison", 8, 2
ROWS = {row.what: row for row in ANSWER_OUTCOMES}
RETRIES = {"max_attempts": ATTEMPTS, "initial_backoff": "100ms", "max_backoff": "200ms"}


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def stack(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    trusted = tmp_path_factory.mktemp("authority") / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    settings = {
        "BATCHWRIGHT_MAX_RESPONSE_BYTES": str(LIMIT),
        **with_constants(refresh_seconds=0.5),
        "BATCHWRIGHT_MAX_ATTEMPTS": str(ATTEMPTS),
        "BATCHWRIGHT_PRE_CALL_HOOKS": '["tests.e2e.hooks:follow_instruction"]',
        "BATCHWRIGHT_HOOK_TIMEOUT_SECONDS": "15",
        # A worker on a busy machine must not count as lost: its slices would be sent again.
        "BATCHWRIGHT_HEARTBEAT_TIMEOUT_SECONDS": "120",
        "PYTHONPATH": python_path(str(Path.cwd())),
        "SSL_CERT_FILE": str(trusted),
    }
    with dev(data=None, **settings) as stack:
        yield stack


class Shown(BaseModel):
    """A batch with the field that the official client does not know: its waiting reasons."""

    class Extension(BaseModel):
        class Waiting(BaseModel):
            model: str

        waiting: list[Waiting] | None

    status: str
    x_batchwright: Extension


class Server:
    """A backend that answers the poisoned line badly for the first `times` requests.

    All other responses are good.
    """

    def __init__(self, model: str, bad: Bad, times: int) -> None:
        self._bad, self._left = bad, times
        self._listing = response(json.dumps({"object": "list", "data": [{"id": model}]}).encode())
        self._good = (
            response(hostile_backends.GOOD)
            if bad.endpoint == CHAT
            else hostile_backends.embedded(0, 1, 2).serve
        )
        self.request_counts = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head, body = await read_request(reader)
        again = asyncio.StreamReader()
        again.feed_data(head + body)
        serve = self._listing if head.startswith(b"GET") else self._good
        if POISON.encode() in body:
            self.request_counts += 1
            serve = self._bad.serve if self.request_counts <= self._left else self._good
        await serve(again, writer)


async def register(stack: Stack, backends: dict[str, dict[str, object]]) -> None:
    """Register the models, each with one backend, and wait until the API lists all of them."""
    async with http_client() as http:
        for model, backend in backends.items():
            jobs = BAD_JOBS[model].config if model in BAD_JOBS else {}
            config = {"backends": [backend], "retries": RETRIES, **jobs}
            (await http.put(f"{stack.now.api}/admin/models/{model}", json=config)).raise_for_status()

    async def are_served() -> bool:
        async with stack.client() as client:
            return backends.keys() <= {found.id async for found in client.models.list()}

    await until(are_served)


def line_of(model: str, endpoint: str, content: str) -> dict[str, object]:
    body = {**json.loads(request_body(endpoint, content)), "model": model}
    return {"custom_id": f"{model}:{content}", "method": "POST", "url": endpoint, "body": body}


async def results(
    stack: Stack, lines: list[dict[str, object]], endpoint: Literal["/v1/chat/completions", "/v1/embeddings"]
) -> tuple[dict[str, ResultLine], dict[str, ResultLine]]:
    """Run the lines as a batch. Return the lines of its output file and of its error file, by custom_id."""
    async with stack.client() as client:
        batch = await ended(client, (await submit(client, lines, endpoint=endpoint)).id)
        await check_conservation(client, batch, lines)
        assert batch.status == "completed"
        output = await lines_of(client, batch.output_file_id)
        errors = await lines_of(client, batch.error_file_id)
    return {line.custom_id: line for line in output}, {line.custom_id: line for line in errors}


@pytest.mark.parametrize("endpoint", [CHAT, EMBEDDINGS])
async def test_each_line_of_a_batch_over_every_bad_response_ends_as_the_reference_says(
    stack: Stack, endpoint: Literal["/v1/chat/completions", "/v1/embeddings"]
) -> None:
    bad = {what: bad for what, bad in hostile_backends.ANSWERS.items() if bad.endpoint == endpoint}
    models = {f"bad-{number}-{endpoint[4:8]}": what for number, what in enumerate(bad)}
    servers: dict[str, Server] = {}
    backends: dict[str, dict[str, object]] = {}
    async with AsyncExitStack() as opened:
        for model, what in models.items():
            waits = ROWS[what].budget is Budget.CAPACITY
            server = servers[model] = Server(model, bad[what], times=2 if waits else 1000)
            target = await opened.enter_async_context(served(server.serve))
            timeout = {"request_timeout": "20s"} if bad[what].out_of_time else {}
            backends[model] = {"url": f"http://{target.authority.decode()}", **timeout}
        await register(stack, backends)
        # Good lines go first, so that the backend is known to work when it answers badly.
        contents = [*(f"good {number}" for number in range(EACH - 1)), POISON]
        lines = [line_of(model, endpoint, content) for content in contents for model in models]
        output, errors = await results(stack, lines, endpoint)
    found = {models[model]: shown(f"{model}:{POISON}", output, errors) for model in models}
    assert found == {what: expected(ROWS[what]) for what in bad}
    assert len(output) + len(errors) == len(lines)
    assert {key.rpartition(":")[2] for key in errors} == {POISON}
    times = {models[model]: server.request_counts for model, server in servers.items()}
    assert times == {
        what: {Budget.ATTEMPT: ATTEMPTS, Budget.CAPACITY: 3}.get(ROWS[what].budget, 1) for what in bad
    }


def shown(key: str, output: dict[str, ResultLine], errors: dict[str, ResultLine]) -> str:
    if key in output:
        return "the response, in the output file"
    error = errors[key].error
    return "the response, in the error file" if error is None else error.code


def expected(row: AnswerOutcome) -> str:
    """Return the expected end of a line as text. A line that must wait succeeds in the end."""
    return "the response, in the output file" if row.ends == "waits" else str(row.ends)


async def test_lines_of_an_unreachable_or_slow_backend_expire_and_the_batch_shows_the_reason(
    stack: Stack, authority: trustme.CA
) -> None:
    async with unreachable(authority) as backends, stack.client() as client:
        await register(stack, backends)
        lines = [line_of(model, CHAT, "hello") for model in [*backends, MODELS[0]]]
        unreachable_models = backends.keys() - {"late"}
        for window in ("15s", "90s", "240s"):  # the long ones are for a machine under load
            batch = await submit(client, lines, window=window)
            if await models_that_wait(stack, batch, unreachable_models) >= unreachable_models:
                break
        else:
            pytest.fail("the window closed before the batch showed all reasons")
        batch = await ended(client, batch.id)
        await check_conservation(client, batch, lines)
        errors = await lines_of(client, batch.error_file_id)
        [answered] = await lines_of(client, batch.output_file_id)
    assert (batch.status, answered.custom_id) == ("expired", f"{MODELS[0]}:hello")
    assert Counter(line.error.code for line in errors if line.error is not None) == {
        LineCode.BATCH_EXPIRED: len(backends)
    }


async def models_that_wait(stack: Stack, batch: Batch, wanted: Set[str]) -> set[str]:
    """Return the models for which the batch shows a waiting reason.

    Wait until it shows all wanted ones, or has ended.
    """
    waiting: set[str] = set()

    async def all_say_why() -> bool:
        async with http_client() as http:
            answer = await http.get(f"{stack.now.api}/v1/batches/{batch.id}")
        found = Shown.model_validate_json(answer.content)
        waiting.update(one.model for one in found.x_batchwright.waiting or [])
        return waiting >= wanted or found.status in ENDED

    await until(all_say_why)
    return waiting


@asynccontextmanager
async def unreachable(authority: trustme.CA) -> AsyncGenerator[dict[str, dict[str, object]]]:
    """Yield unreachable backends by model. The name of the model says why its backend is unreachable."""
    yesterday = datetime.now(UTC) - timedelta(days=1)
    certificates = {
        "expired": authority.issue_cert("localhost", not_after=yesterday),
        "of-another-host": authority.issue_cert("elsewhere.example"),
        "untrusted": trustme.CA().issue_cert("localhost"),
    }
    backends: dict[str, dict[str, object]] = {
        "nobody": {"url": f"http://127.0.0.1:{free_port()}"},
        "no-address": {"url": "http://nowhere.invalid"},
    }
    async with AsyncExitStack() as opened:
        for name, certificate in certificates.items():
            context = server_context(certificate)
            target = await opened.enter_async_context(served(response(hostile_backends.GOOD), tls=context))
            backends[name] = {"url": f"https://localhost:{target.origin.port}"}
        for name, serve in {
            "no-tls": response(b"", status=b"400 Bad Request"),
            "mute-handshake": mute,
        }.items():
            target = await opened.enter_async_context(served(serve))
            backends[name] = {"url": f"https://{target.authority.decode()}", "connect_timeout": "2s"}
        target = await opened.enter_async_context(served(mute))
        backends["late"] = {"url": f"http://{target.authority.decode()}"}
        yield backends


async def mute(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def test_each_line_of_a_batch_over_every_bad_job_ends_as_the_reference_says(stack: Stack) -> None:
    async with AsyncExitStack() as opened:
        urls = {name: await opened.enter_async_context(serving(bad)) for name, bad in BAD_JOBS.items()}
        await register(stack, {name: {"url": url} for name, url in urls.items()})
        lines = [line_of(name, CHAT, "hello") for name in BAD_JOBS]
        output, errors = await results(stack, lines, CHAT)
    codes = {
        key.rpartition(":")[0]: line.error.code for key, line in errors.items() if line.error is not None
    }
    assert codes == {name: bad.ends for name, bad in BAD_JOBS.items() if bad.ends}
    assert set(output) == {"a-page-for-a-while:hello"}


async def test_a_hook_that_refuses_raises_hangs_or_returns_garbage_fails_only_its_own_line(
    stack: Stack,
) -> None:
    words = ["refuse", "raise", "hang", "rubbish", *(f"good {number}" for number in range(EACH))]
    lines = [line_of(MODELS[0], CHAT, word) for word in words]
    output, errors = await results(stack, lines, CHAT)
    codes = {
        key.rpartition(":")[2]: line.error.code for key, line in errors.items() if line.error is not None
    }
    assert codes == {
        "refuse": LineCode.POLICY_REJECTED,
        "raise": LineCode.HOOK_FAILED,
        "hang": LineCode.HOOK_FAILED,
        "rubbish": LineCode.HOOK_FAILED,
    }
    assert len(output) == EACH
    assert "sk-secret-of-the-hook" not in repr(errors)


async def test_bad_lines_of_one_tenant_end_with_their_500_and_fail_no_batch_of_another(stack: Stack) -> None:
    server, lines = BadLines(), 300
    async with served(server.serve) as target:
        await register(stack, {"tripped": {"url": f"http://{target.authority.decode()}"}})
        bad = [line_of("tripped", CHAT, f"bad {n}: why is my connection refused?") for n in range(lines)]
        good = [line_of("tripped", CHAT, f"good {n}") for n in range(lines)]
        async with stack.client("noisy") as noisy, stack.client("quiet") as quiet:
            first, second = await submit(noisy, bad, endpoint=CHAT), await submit(quiet, good, endpoint=CHAT)
            second, first = await ended(quiet, second.id), await ended(noisy, first.id)
            errors = await lines_of(noisy, first.error_file_id)
    assert second.request_counts is not None
    assert (second.status, second.request_counts.completed) == ("completed", lines)
    assert first.status == "completed"
    assert [line.response and line.response.status_code for line in errors] == [500] * lines
    assert {count for content, count in server.request_counts.items() if content != "ping"} == {1, ATTEMPTS}
