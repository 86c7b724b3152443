"""`batchwright queues`: the names of the task queues that workers poll."""

from typer.testing import CliRunner

from batchwright.starter.__main__ import app


def test_each_models_queue_is_a_line() -> None:
    ended = CliRunner().invoke(app, ["queues", "llama_8b", "org/model-A:1"])
    assert ended.exit_code == 0
    assert ended.stdout.splitlines() == ["inference.llama_8b", "inference.org_model_A_1-454de6cf2fe20d1d"]
