"""The chart's release on a real node: it runs batches, its pods have limits, the guide's commands work."""

import asyncio

import pytest
from openai import AsyncOpenAI
from openai.types import Batch

from tests.clients import http_client
from tests.cluster.installation import ClusterInstallation
from tests.cluster.programs import patiently
from tests.e2e.batches import chat_lines, check_conservation, ended, settled, submit
from tests.e2e.stack import MODELS
from tests.operations.guide import Block, blocks

pytestmark = pytest.mark.cluster
COMPONENTS = ("api", "worker")
LINES = chat_lines(MODELS, each=100)
GUIDE = [block for block in blocks() if block.needs_a_cluster]
_STATUS = "grep -E '^(Uid|Gid|CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/1/status"


def is_ready(installation: ClusterInstallation) -> None:
    for component in COMPONENTS:
        for pod in installation.pods(component):
            installation.kubectl("wait", "--for=condition=Ready", f"pod/{pod}", "--timeout=1s")


def is_gone(installation: ClusterInstallation) -> None:
    assert [installation.pods(component) for component in COMPONENTS] == [[], []]


def output_of(installation: ClusterInstallation, pod: str, command: str) -> str:
    return installation.kubectl("exec", pod, "--", "sh", "-c", command)


async def finished(client: AsyncOpenAI, batch: Batch) -> None:
    done = await ended(client, batch.id, 300)
    await check_conservation(client, done, LINES)
    assert (done.status, done.error_file_id) == ("completed", None)


async def test_a_batch_completes_through_the_service(installed: ClusterInstallation, key: str) -> None:
    async with installed.client(key) as client:
        await finished(client, await submit(client, LINES))


async def test_every_command_of_the_guide_works_and_a_live_batch_outlives_them(
    installed: ClusterInstallation, key: str
) -> None:
    """The commands run in the order of the guide, with all steps that the guide prescribes after each of
    them.
    """
    async with installed.client(key) as client, http_client() as http:
        faults = f"{installed.simulator}/admin/faults"
        (await http.post(faults, json={"kind": "slow", "seconds": 2.0, "rate": 1.0})).raise_for_status()
        batch = await submit(client, LINES)
        await settled(client, batch.id, 1)
        await client.post(f"/batches/{batch.id}/x/pause", cast_to=object)
        assert (await client.batches.retrieve(batch.id)).status == "in_progress"
        (await http.delete(faults)).raise_for_status()
        for block in GUIDE:
            await asyncio.to_thread(run, installed, block)
        await client.post(f"/batches/{batch.id}/x/resume", cast_to=object)
        await finished(client, batch)


def run(installation: ClusterInstallation, block: Block) -> None:
    installation.set_values(model_in_flight=7)  # so that an upgrade changes something
    installation.shell(block.text)
    if "--replicas=0" in block.text:
        patiently(lambda: is_gone(installation))
        installation.shell(
            "helm upgrade batchwright deploy/helm/batchwright --namespace batches --values values.yaml --wait"
        )
    patiently(lambda: is_ready(installation), 240)


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_pod_has_no_more_rights_than_it_needs(installed: ClusterInstallation, component: str) -> None:
    for pod in installed.pods(component):
        status = dict(line.split(":", 1) for line in output_of(installed, pod, _STATUS).splitlines())
        assert set(status["Uid"].split()) == {"10001"}
        assert set(status["Gid"].split()) == {"10001"}
        assert (int(status["CapEff"], 16), int(status["CapBnd"], 16)) == (0, 0)
        assert (status["NoNewPrivs"].strip(), status["Seccomp"].strip()) == ("1", "2")
        assert "Read-only" in output_of(installed, pod, "touch /here 2>&1 || true")
        assert output_of(
            installed, pod, "touch /var/spool/batchwright/here && ls /var/spool/batchwright"
        ).split() == ["here"]
        assert output_of(installed, pod, "ls /var/run/secrets/kubernetes.io 2>/dev/null || true") == ""
