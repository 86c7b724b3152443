"""`batchwright results`: whole results, and results that are followed while the batch runs."""

import subprocess
import sys
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchwright.contracts.api_objects.openai import BatchObject
from batchwright.contracts.temporal_payloads.batch import ModelCounts
from batchwright.contracts.terms import BatchStatus, Usage, ValidationError
from batchwright.database.records import BatchOutcome
from batchwright.starter.client_errors import ClientError
from batchwright.starter.commands.batches import results
from batchwright.starter.commands.batches.results import follow_results
from batchwright.storage.base import StorageFull
from batchwright.storage.spill.scratch_file import ScratchFile
from tests.fakes.small_memory import small_memory
from tests.unit.starter.cli import LATER, UNKNOWN, Cli, run_now, served
from tests.unit.starter.test_demo_batch import a_batch


@pytest.fixture(scope="module")
def cli() -> Generator[Cli]:
    with served() as running:
        yield running


def test_results_are_printed_unchanged(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b'{"n": 1e400, "s": "\xc3\xa9"}\n', error=b"{}\n")
    assert cli.run("results", batch_id).stdout_bytes == b'{"n": 1e400, "s": "\xc3\xa9"}\n'
    assert cli.run("results", batch_id, "--errors").stdout_bytes == b"{}\n"


def test_results_replace_the_content_of_the_output_file(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, BatchStatus.EXPIRED, output=b"{}\n")
    target = tmp_path / "output.jsonl"
    target.write_bytes(b"of an earlier run, and longer\n")
    ended = cli.run("results", batch_id, "-o", str(target))
    assert (ended.exit_code, ended.stdout, target.read_bytes()) == (0, "", b"{}\n")
    elsewhere = cli.run("results", batch_id, "-o", str(tmp_path / "missing" / "file"))
    assert (elsewhere.exit_code, "cannot be written" in elsewhere.stderr) == (3, True)


def test_results_of_a_live_batch_do_not_exist_yet(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    early = cli.run("results", batch_id)
    assert (early.exit_code, f"batchwright watch {batch_id}" in early.stderr) == (2, True)


@pytest.mark.parametrize("is_ended", [False, True])
def test_results_can_be_followed_to_the_end(cli: Cli, tmp_path: Path, is_ended: bool) -> None:
    row = cli.submitted(tmp_path)
    cli.begin(row, ModelCounts(model="llama", lines=1))
    batch_id = row.order.batch_id
    output, error = line(1) + line(2), line(3)
    is_followed = threading.Event()

    def end() -> None:
        if is_ended or is_followed.wait(60):
            cli.end(batch_id, output=output, error=error)

    ending = threading.Thread(target=end)
    cli.api.temporal.on_ingested = is_followed.set  # once the API looks for the plans of the batch
    ending.start()
    if is_ended:
        ending.join()
    ended = cli.run("results", batch_id, "--follow")
    ending.join()
    assert (ended.exit_code, ended.stdout_bytes) == (0, output)
    assert cli.run("results", batch_id, "--follow", "--errors").stdout_bytes == error
    settled = cli.run("results", batch_id, "--follow", "--settled", "--errors")
    assert (settled.exit_code, settled.stdout_bytes) == (0, error)


def line(n: int) -> bytes:
    return b'{"id":"batch_req_%032d","custom_id":"c"}\n' % n


class BrokenSource:
    """The results of an ended batch with three lines. The first connection breaks in the third line.

    The second connection breaks before it has returned anything.
    """

    def __init__(self) -> None:
        self.calls: list[str | None] = []

    def batch(self, batch_id: str) -> BatchObject:
        return a_batch(BatchStatus.COMPLETED)

    @contextmanager
    def live_results(
        self, batch_id: str, *, failed: bool, after: str | None, in_input_order: bool
    ) -> Generator[Iterator[bytes]]:
        self.calls.append(after)
        yield self._pieces(len(self.calls))

    def _pieces(self, call: int) -> Iterator[bytes]:
        if call == 1:
            yield line(1)[:20]
            yield line(1)[20:] + line(2) + line(3)[:-1]
        if call < 3:
            raise ClientError("broken", is_transient=True)
        yield line(3)


def test_a_follower_continues_after_its_last_whole_line() -> None:
    source = BrokenSource()
    found = b"".join(follow_results(source, "batch_1", failed=False, retry_seconds=0))
    assert found == line(1) + line(2) + line(3)
    second = f"batch_req_{2:032d}"
    assert source.calls == [None, second, second]


def test_a_follower_continues_until_the_batch_had_ended_before_the_response_began() -> None:
    class ShortResponses(BrokenSource):
        """Results whose responses each end after one line. The batch ends during the second response."""

        def batch(self, batch_id: str) -> BatchObject:
            return a_batch(BatchStatus.IN_PROGRESS if len(self.calls) < 2 else BatchStatus.COMPLETED)

        def _pieces(self, call: int) -> Iterator[bytes]:
            yield line(call)

    source = ShortResponses()
    found = b"".join(follow_results(source, "batch_1", failed=False, retry_seconds=0))
    assert found == line(1) + line(2) + line(3)
    assert source.calls == [None, f"batch_req_{1:032d}", f"batch_req_{2:032d}"]


@pytest.mark.parametrize("in_input_order", [True, False])
def test_a_follower_pauses_after_a_response_that_ends_without_new_lines(
    monkeypatch: pytest.MonkeyPatch, in_input_order: bool
) -> None:
    class EmptyResponses(BrokenSource):
        """Results whose first two responses end at once. The batch ends before the last response."""

        def batch(self, batch_id: str) -> BatchObject:
            return a_batch(BatchStatus.IN_PROGRESS if len(self.calls) < 3 else BatchStatus.COMPLETED)

        def _pieces(self, call: int) -> Iterator[bytes]:
            yield from [line(1)] if call > 2 else []

    pauses: list[float] = []
    monkeypatch.setattr(results, "time", SimpleNamespace(sleep=pauses.append))
    source = EmptyResponses()
    found = follow_results(source, "batch_1", failed=False, in_input_order=in_input_order, retry_seconds=7.0)
    assert list(found) == [line(1)] * (2 if in_input_order else 1)
    assert pauses == [7.0, 7.0]


def test_a_follower_in_the_order_of_settlement_prints_each_line_once() -> None:
    class RepeatedResponses(BrokenSource):
        """Results whose second response begins with the first line again, in another order."""

        def _pieces(self, call: int) -> Iterator[bytes]:
            if call == 1:
                yield line(3) + line(1)[:20]
                raise ClientError("broken", is_transient=True)
            yield line(1) + line(3)
            yield line(2)

    source = RepeatedResponses()
    found = follow_results(source, "batch_1", failed=False, in_input_order=False, retry_seconds=0)
    assert list(found) == [line(3), line(1), line(2)]
    assert source.calls == [None, None]


def test_a_follower_names_the_disk_that_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(file: ScratchFile, needed_bytes: int) -> None:
        raise StorageFull(f"Following results needs {needed_bytes} bytes")

    small_memory(monkeypatch)
    monkeypatch.setattr(ScratchFile, "require", full)

    class Large(BrokenSource):
        def _pieces(self, call: int) -> Iterator[bytes]:
            yield b"".join(map(line, range(100)))

    with pytest.raises(StorageFull, match="Following results needs 1600 bytes"):
        list(follow_results(Large(), "batch_1", failed=False, in_input_order=False, retry_seconds=0))


def test_only_followed_results_can_be_in_the_order_of_settlement(cli: Cli) -> None:
    ended = cli.run("results", UNKNOWN, "--settled")
    assert (ended.exit_code, "--settled requires --follow" in ended.stderr) == (3, True)


def test_a_follower_gives_up_if_the_api_rejects_it() -> None:
    class Rejecting(BrokenSource):
        def _pieces(self, call: int) -> Iterator[bytes]:
            raise ClientError("no", is_rejected=True)

    with pytest.raises(ClientError, match="no"):
        list(follow_results(Rejecting(), "batch_1", failed=False, retry_seconds=0))


def test_results_without_a_success_point_to_the_errors(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, error=b"{}\n")
    ended = cli.run("results", batch_id)
    assert (ended.exit_code, "results --errors" in ended.stderr) == (1, True)


@pytest.mark.parametrize(("options", "kind"), [((), "output"), (("--errors",), "error")])
def test_results_of_a_batch_that_ended_without_files_point_to_its_status(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], kind: str
) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    error = ValidationError(code="system_error", message="The results could not be written.")
    outcome = BatchOutcome(status=BatchStatus.FAILED, completed=1, failed=1, usage=Usage(), errors=[error])
    run_now(cli.api.database.batch_ends.finish("default", batch_id, outcome, LATER))
    ended = cli.run("results", batch_id, *options)
    hint = f"`batchwright status {batch_id}` shows why."
    assert (ended.exit_code, ended.stderr) == (1, f"{batch_id} has no {kind} file; {hint}\n")


def test_results_that_do_not_fit_on_the_disk_end_the_command_with_one_sentence(
    cli: Cli, tmp_path: Path
) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b"{}\n")
    command = [sys.executable, "-m", "batchwright.starter", "results", batch_id, "--url", cli.url]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (
        3,
        "The output cannot be written: No space left on device.\n",
    )


def test_without_failed_lines_the_command_succeeds(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    cli.end(batch_id, output=b"{}\n")
    ended = cli.run("results", batch_id, "--errors")
    assert (ended.exit_code, "No line" in ended.stderr) == (0, True)


def test_pending_files_do_not_exist_yet(cli: Cli, tmp_path: Path) -> None:
    batch_id = cli.submitted(tmp_path).order.batch_id
    end = cli.api.database.batch_ends.end_without_files
    run_now(end("default", batch_id, BatchStatus.EXPIRED, [], LATER, files_until=LATER))
    early = cli.run("results", batch_id)
    assert (early.exit_code, "its files are not written yet" in early.stderr) == (2, True)
    assert "expired, files pending" in cli.run("status", batch_id).stdout
