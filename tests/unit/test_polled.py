"""What workers say beside their numbers: which queues they poll, and whose slices they run."""

from batchwright.rules.polled import is_number, polled, polls, running, runs


def test_what_several_workers_poll_and_run_is_read_back() -> None:
    first = {"in_flight": 3.0, **polls(["io"]), **runs({("batch_1", "a model/with spaces"): 2})}
    second = {**polls(["io", "control"]), **runs({("batch_2", "b"): 1})}
    assert polled([first, second]) == {"io", "control"}
    assert running([first, second]) == {("batch_1", "a model/with spaces"), ("batch_2", "b")}
    assert [name for name in first if is_number(name)] == ["in_flight"]
