"""Inputs with a prompt: the batch of one line, the text of its answer, and the reasons of failures."""

import pytest

from batchwright.contracts.terms import Endpoint
from batchwright.starter.folder import prompts
from batchwright.starter.folder.input_batches import BatchOptions
from tests.unit.starter.cli import LINE
from tests.unit.starter.folder.inbox import OPTIONS, Inbox


def test_a_prompt_becomes_a_batch_of_one_line_and_its_answer_a_text(inbox: Inbox) -> None:
    inbox.submit("1736700000_5_0", prompt_txt='Say "hi" in Türkçe.')
    with inbox.runner(BatchOptions(Endpoint.EMBEDDINGS, "2h", "llama")) as runner:
        runner.round()
        [batch] = inbox.batches
        assert (batch.order.endpoint, batch.order.completion_window) == ("/v1/chat/completions", "2h")
        inbox.answer()
        runner.round()
    assert inbox.read("output/1736700000_5_0/prompt.txt") == 'Say "hi" in Türkçe.'
    assert inbox.read("output/1736700000_5_0/result.txt") == 'answer to Say "hi" in Türkçe.'


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ("hi", BatchOptions(OPTIONS.endpoint, "24h", None), "start `batchwright folder` with --model"),
        (" \n", OPTIONS, "prompt.txt is empty."),
        ("hi", BatchOptions(OPTIONS.endpoint, "5x", "llama"), "A completion window is"),
    ],
    ids=["no model", "empty", "refused"],
)
def test_a_prompt_that_cannot_be_sent_is_moved_to_failed(
    inbox: Inbox, prompt: str, options: BatchOptions, reason: str
) -> None:
    inbox.submit("a", prompt_txt=prompt)
    with inbox.runner(options) as runner:
        assert runner.round()
    assert inbox.states() == {"a": "failed"}
    assert reason in inbox.read("failed/a/error.txt")
    assert inbox.batches == []
    assert inbox.cli.api.storage.objects == {}


def test_a_prompt_of_another_type_than_text_is_moved_to_failed(inbox: Inbox) -> None:
    """The program `wrk` of nrvna-ai writes the type of a job into a file, unless the type is text."""
    inbox.submit("1", prompt_txt="hi", type_txt="embed", meta_json="{}")
    inbox.submit("2", prompt_txt="hi", type_txt="text\n", meta_json="{}")
    with inbox.runner() as runner:
        runner.round()
    assert inbox.states() == {"1": "failed", "2": "processing"}
    assert inbox.read("failed/1/error.txt") == "type.txt is 'embed': only prompts of type 'text' are run.\n"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (
            b'{"response": {"status_code": 400, "body": {"error": {"message": "too long"}}}, "error": null}',
            "The backend answered with status 400: too long\n",
        ),
        (
            b'{"response": {"status_code": 500, "body": "out of memory"}, "error": null}',
            'The backend answered with status 500: "out of memory"\n',
        ),
        (
            b'{"response": null, "error": {"code": "model_not_found", "message": "No model."}}',
            "No model. (model_not_found)\n",
        ),
        (b"broken", "The request failed; see errors.jsonl.\n"),
    ],
    ids=["refused", "out of memory", "no model", "unreadable"],
)
def test_a_prompt_without_an_answer_fails_with_the_reason_of_its_line(
    inbox: Inbox, error: bytes, reason: str
) -> None:
    inbox.submit("a", prompt_txt="hi")
    with inbox.runner() as runner:
        runner.round()
        inbox.cli.end(inbox.batches[0].order.batch_id, error=error)
        runner.round()
    assert inbox.read("failed/a/error.txt") == reason
    assert inbox.files("failed/a") == {"prompt.txt", "input.jsonl", "errors.jsonl", "error.txt", "batch.json"}


def test_an_answer_without_text_is_kept_beside_the_reason(inbox: Inbox) -> None:
    inbox.submit("a", prompt_txt="hi")
    with inbox.runner() as runner:
        runner.round()
        call = b'{"response": {"status_code": 200, "body": {"choices": [{"message": {"content": null}}]}}}'
        inbox.cli.end(inbox.batches[0].order.batch_id, output=call)
        runner.round()
    assert "has no text" in inbox.read("failed/a/error.txt")
    assert "choices" in inbox.read("failed/a/output.jsonl")


def test_of_an_output_that_is_too_large_for_an_answer_only_the_beginning_is_read(
    inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompts, "_MAX_ANSWER_BYTES", 1_000)
    inbox.submit("a", prompt_txt="hi", input_jsonl=LINE)
    with inbox.runner() as runner:
        runner.round()
        call = b'{"response": {"status_code": 200, "body": {"choices": [{"message": {"content": "ok"}}]}}}'
        inbox.cli.end(inbox.batches[0].order.batch_id, output=b" " * 1_000 + call)
        runner.round()
    assert "has no text" in inbox.read("failed/a/error.txt")
    assert "choices" in inbox.read("failed/a/output.jsonl")
