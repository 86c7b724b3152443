"""If a test run is killed, the stack that it started ends, too."""

import subprocess
import sys

import pytest

from tests.e2e.stack import Addresses
from tests.integration.starter.stacks import alive, until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

_RUN = """
from tests.e2e.stack import dev
with dev() as stack:
    print(stack.now.model_dump_json(), flush=True)
    input()
"""


def test_a_stack_ends_with_its_test_run_even_if_the_run_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _RUN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        try:
            stack = Addresses.model_validate_json(run.stdout.readline())
            pids = stack.pids
            started = [pids.dev, pids.temporal, pids.postgres, *pids.of("simulator"), *pids.api, *pids.worker]
            assert all(map(alive, started))
        finally:
            run.kill()
    until(lambda: not any(map(alive, started)), seconds=120)
