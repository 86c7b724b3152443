"""Polled queues and running slices in worker heartbeats."""

from batchwright.rules.worker_stats import (
    ANY_MODEL_QUEUE,
    is_polled,
    is_worker_number,
    polled_queue_stats,
    polled_queues,
    running_models,
    running_slice_stats,
)


def test_statistics_of_several_workers_are_read_as_written() -> None:
    first = {
        "in_flight": 3.0,
        **polled_queue_stats(["io"]),
        **running_slice_stats({("batch_1", "a model/with spaces"): 2}),
    }
    second = {**polled_queue_stats(["io", "control"]), **running_slice_stats({("batch_2", "b"): 1})}
    assert polled_queues([first, second]) == {"io", "control"}
    assert running_models([first, second]) == {("batch_1", "a model/with spaces"), ("batch_2", "b")}
    assert [name for name in first if is_worker_number(name)] == ["in_flight"]


def test_workers_of_any_model_poll_the_queues_of_models_and_no_others() -> None:
    served = polled_queues([polled_queue_stats([ANY_MODEL_QUEUE])])
    assert [is_polled(queue, served) for queue in ("inference.a", "control")] == [True, False]
    assert not is_polled("inference.a", polled_queues([polled_queue_stats(["inference.b"])]))
