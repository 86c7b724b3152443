"""The pages of a tenant's batches and lines, used without JavaScript, and what their forms do."""

import tracemalloc
from collections.abc import AsyncGenerator
from datetime import UTC, datetime, timedelta

import pytest

from batchwright.api.ui import batch_pages, line_pages
from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import ErrorCount, ErrorExample, ModelCounts
from batchwright.contracts.temporal_payloads.output_copies import OutputCopy
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.records import BatchOutcome, FileRow
from batchwright.database.tables.batches.waiting_reasons import WaitingRow, WaitingSource
from tests.fakes.api import ApiFixture, open_api
from tests.unit.api.ui.browser import HOSTILE, INPUT, Browser, text_of


@pytest.fixture
async def api() -> AsyncGenerator[ApiFixture]:
    async with open_api(auth="none", temporal_ui_url="http://temporal.test:8233") as api:
        yield api


async def run(
    api: ApiFixture, batch: BatchObject, *models: ModelCounts, completed: int = 0, failed: int = 0
) -> None:
    """Let the batch begin. `completed` and `failed` are the numbers of its settled lines."""
    await api.database.batches.start(
        "default",
        batch.id,
        total=sum(model.lines for model in models),
        models=list(models),
        at=datetime.now(UTC),
        unserved=failed,
        completed=completed,
    )


async def end(api: ApiFixture, batch: BatchObject, output: bytes = b"", errors: bytes = b"") -> None:
    """Let the batch end with these files. Each failed line has the code `http_500`."""
    files = [await stored(api, content) if content else None for content in (output, errors)]
    failed = len(errors.splitlines())
    example = ErrorExample(custom_id="line-1", message=HOSTILE)
    await api.database.batch_ends.finish(
        "default",
        batch.id,
        BatchOutcome(
            status=BatchStatus.COMPLETED,
            completed=len(output.splitlines()),
            failed=failed,
            output=files[0],
            error=files[1],
            usage=Usage(),
            errors_summary=[ErrorCount(code="http_500", model="llama", count=failed, example=example)]
            if failed
            else [],
        ),
        datetime.now(UTC),
    )


async def stored(api: ApiFixture, content: bytes) -> FileRow:
    file = await api.upload(content, purpose="user_data")
    [row] = [row for row in api.database.rows.files.values() if row.id == file.id]
    return row


def result(number: int, answer: str = "yes") -> bytes:
    return (
        b'{"id":"batch_req_%032x","custom_id":"line-%d","response":{"status_code":200,"request_id":"r","body":{"answer":"%s"}},"error":null}\n'
        % (number, number, answer.encode())
    )


async def test_the_list_shows_batches_with_status_counts_and_metadata(
    api: ApiFixture, browser: Browser
) -> None:
    old = await api.create(metadata={"team": HOSTILE})
    batch = await api.create(metadata={"run": "7"})
    await run(api, batch, ModelCounts(model="llama", lines=40), completed=10, failed=2)
    page = await browser.page("/ui")
    assert page.index(batch.id) < page.index(old.id)
    shown = text_of(page)
    assert "in progress" in shown
    assert "12 of 40, 2 failed" in shown
    assert "run : 7" in shown
    assert "24 h 0 min left" in shown or "23 h 59 min left" in shown
    assert '<rect class="done" width="25.00%"' in page
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


async def test_filters_choose_batches_and_a_wrong_one_is_explained(api: ApiFixture, browser: Browser) -> None:
    one, other = await api.create(metadata={"run": "7"}), await api.create(metadata={"run": "8"})
    for query in ("key=run&value=7", "metadata[run]=7"):
        page = await browser.page(f"/ui/batches?{query}")
        assert (one.id in page, other.id in page) == (True, False)
    today = datetime.now(UTC).date()
    assert one.id in await browser.page(
        f"/ui/batches?created_after={today}&created_before={today}&status=validating"
    )
    assert one.id not in await browser.page("/ui/batches?created_before=2020-01-01")
    assert one.id not in await browser.page("/ui/batches?status=failed")
    wrong = await browser.get("/ui/batches?created_after=tomorrow")
    assert wrong.status_code == 400
    assert "is not a date such as" in wrong.text


async def test_older_batches_are_on_further_pages(api: ApiFixture, browser: Browser) -> None:
    ids = {(await api.create()).id for _ in range(30)}
    first = await browser.page("/ui/batches")
    link = first.rpartition('href="')[2].partition('"')[0].replace("&amp;", "&")
    second = await browser.page(link)
    assert {id for id in ids if id in first} | {id for id in ids if id in second} == ids
    assert sum(id in second for id in ids) == 5


async def test_a_waiting_batch_shows_the_reason_and_a_remedy(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    now = datetime.now(UTC)
    await api.database.waiting.report(
        WaitingRow(
            tenant="default",
            batch_id=batch.id,
            source=WaitingSource.WORKER,
            model="llama",
            reason=f"no backend serves this `model` {HOSTILE}",
            since=now,
            until=now.replace(year=now.year + 1),
        )
    )
    page = await browser.page(f"/ui/batches/{batch.id}")
    assert "no backend serves this <code>model</code>" in page
    assert "ask the operator to add a backend that serves it" in page
    assert "<script>alert" not in page
    assert f"http://temporal.test:8233/namespaces/default/workflows/{batch.id}" in page


async def test_a_batch_is_paused_resumed_and_cancelled(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    await run(api, batch, ModelCounts(model="llama", lines=4))
    path = f"/ui/batches/{batch.id}"
    paused = await browser.send(await browser.page(path), f"{path}/pause")
    assert "Resume the batch to continue" in paused.text
    await browser.send(paused.text, f"{path}/resume")
    cancelled = await browser.send(await browser.page(path), f"{path}/cancel")
    assert "cancelling" in cancelled.text
    assert [signal for _, signal in api.temporal.signals] == ["pause", "resume", "cancel"]


async def test_the_throughput_of_a_batch_is_drawn_once_there_are_samples(
    api: ApiFixture, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = await api.create()
    await run(api, batch, ModelCounts(model="llama", lines=100))
    path = f"/ui/batches/{batch.id}"
    monkeypatch.setattr(batch_pages, "_CHART_SECONDS", 0)
    assert "Throughput" not in await browser.page(path)
    for seconds in (15, 30):
        await api.database.progress.sample(datetime.now(UTC) + timedelta(seconds=seconds))
    page = await browser.page(path)
    assert '<path d="M0 100V100H' in page
    assert "0.0 on average" in text_of(page)


async def test_an_action_that_the_api_refuses_says_why(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    path = f"/ui/batches/{batch.id}"
    page = await browser.page(path)
    await end(api, batch, result(1))
    refused = await browser.send(page, f"{path}/pause")
    assert refused.status_code == 409
    assert "Cannot pause a batch with status &#39;completed&#39;" in refused.text
    assert (await browser.send(page.replace(path, "/ui/batches/a%20b"), "/ui/batches/a")).status_code == 404


async def test_an_operator_changes_the_priority(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    path = f"/ui/batches/{batch.id}"
    changed = await browser.send(await browser.page(path), f"{path}/priority", priority="5")
    assert "<dt>Priority</dt><dd>5</dd>" in changed.text


async def test_errors_are_grouped_and_one_group_is_retried(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create(input_file_id=(await api.upload(INPUT)).id, endpoint="/v1/embeddings")
    path, failed = f"/ui/batches/{batch.id}", result(1).replace(b'"status_code":200', b'"status_code":500')
    await run(api, batch, ModelCounts(model="llama", lines=60))
    await end(api, batch, result(0), failed)
    page = await browser.page(path)
    assert "http_500" in text_of(page)
    assert "<script>alert" not in page
    [group] = [part for part in page.split("<tr>") if "http_500" in part]
    retried = await browser.send(group, f"{path}/retry")
    assert retried.status_code in (200, 500)  # the fake error file names no line of the input


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (BatchStatus.FAILED, "The batch failed"),
        (BatchStatus.EXPIRED, "The batch ended with a problem"),
    ],
)
async def test_only_a_batch_that_failed_is_said_to_have_failed(
    api: ApiFixture, browser: Browser, status: BatchStatus, title: str
) -> None:
    batch = await api.create()
    error = ValidationError(code="budget_exceeded", message="The cap on its cost was reached.")
    outcome = BatchOutcome(status=status, completed=0, failed=0, usage=Usage(), errors=[error])
    await api.database.batch_ends.finish("default", batch.id, outcome, datetime.now(UTC))
    shown = text_of(await browser.page(f"/ui/batches/{batch.id}"))
    assert f"{title} The cap on its cost was reached. budget_exceeded" in shown


async def test_a_batch_is_deleted(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create()
    await end(api, batch, result(1))
    path = f"/ui/batches/{batch.id}"
    listed = await browser.send(await browser.page(path), f"{path}/delete")
    assert listed.status_code == 200
    assert batch.id not in listed.text


async def test_lines_show_the_request_beside_the_response(api: ApiFixture, browser: Browser) -> None:
    batch = await api.create(input_file_id=(await api.upload(INPUT)).id, endpoint="/v1/embeddings")
    await end(api, batch, b"".join(result(number, f"answer {number}") for number in range(45)))
    first = await browser.page(f"/ui/batches/{batch.id}/lines")
    assert (first.count("<details"), "answer 19" in first, "answer 20" in first) == (20, True, False)
    link = first.rpartition('class="button" href="')[2].partition('"')[0].replace("&amp;", "&")
    second = await browser.page(link)
    assert (second.count("<details"), "&#34;q20&#34;" in second, "answer 20" in second) == (20, True, True)
    found = await browser.page(f"/ui/batches/{batch.id}/lines?custom_id=line-41")
    assert (found.count("<details"), "answer 41" in found, "&#34;q41&#34;" in found) == (1, True, True)
    assert "No line" in await browser.page(f"/ui/batches/{batch.id}/lines?custom_id=line-59")


async def test_a_page_has_fewer_lines_if_they_are_large(
    api: ApiFixture, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_pages, "_MAX_PAGE_BYTES", 1000)
    batch = await api.create(input_file_id=(await api.upload(INPUT)).id, endpoint="/v1/embeddings")
    await end(api, batch, b"".join(result(number, "x" * 300) for number in range(45)))
    page = await browser.page(f"/ui/batches/{batch.id}/lines")
    assert (page.count("<details"), "Next lines" in page) == (3, True)


async def test_a_batch_shows_the_state_of_the_copy_of_its_files() -> None:
    async with open_api(auth="none", data_locations={"default": {"write": ["s3://out/"]}}) as api:
        batch = await api.create(x_batchwright={"output_location": "s3://out/blue"})
        await end(api, batch, result(1))
        path, browser = f"/ui/batches/{batch.id}", Browser(api)
        assert "Copy at s3://out/blue : pending" in text_of(await browser.page(path))
        await api.database.batches.record_output_copy("default", batch.id, OutputCopy(error=HOSTILE))
        page = await browser.page(path)
        assert "<script>alert" not in page
        assert 'alert("1")' in text_of(page)


async def test_an_unknown_page_is_a_page(browser: Browser) -> None:
    response = await browser.get("/ui/nothing")
    assert response.status_code == 404
    assert "<h1>Not Found</h1>" in response.text


async def test_a_response_with_a_lone_surrogate_is_shown_and_the_next_page_follows_it(
    api: ApiFixture, browser: Browser
) -> None:
    batch = await api.create()
    await run(api, batch, ModelCounts(model="llama", lines=60), completed=60)
    output = b"".join(result(number, "\\ud83d") for number in range(60))
    await end(api, batch, output)
    page = await browser.page(f"/ui/batches/{batch.id}/lines")
    assert "line-19" in page
    assert "after=None" not in page


async def test_a_short_line_whose_indented_form_would_be_very_long_is_cut_before_it_is_indented(
    api: ApiFixture, browser: Browser
) -> None:
    nested = b"[" * 480 + b"0," * 20_000 + b"0" + b"]" * 480  # 20 MB with indentation
    line = INPUT.splitlines()[0].replace(b'"q0"', nested)
    batch = await api.create(input_file_id=(await api.upload(line)).id, endpoint="/v1/embeddings")
    await end(api, batch, result(0).replace(b'"yes"', nested))
    tracemalloc.start()
    try:
        page = await browser.page(f"/ui/batches/{batch.id}/lines")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert page.count("... Download the file to read the rest.") == 2
    assert peak < 5_000_000
