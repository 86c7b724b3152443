"""Starts the stacks and APIs on which the checks run. Each starts when a check first needs it."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from batchwright.contracts.terms import Profile
from batchwright.starter.embedded_stack.ports import free_port
from tests.clients import get
from tests.conformance.contract import Place
from tests.constants import with_constants
from tests.e2e.stack import SETTINGS, Addresses, Stack, dev
from tests.integration.starter.stacks import until

PART_BYTES = 50_000
# Limits that a check passes with a few bytes; policies that an operator may choose.
TIGHT = {
    "BATCHWRIGHT_MAX_LINES": "20",
    "BATCHWRIGHT_MAX_LINE_BYTES": "4000",
    "BATCHWRIGHT_MAX_EMBEDDING_INPUTS": "5",
    "BATCHWRIGHT_MAX_BATCH_FILE_BYTES": "100000",
    "BATCHWRIGHT_MAX_MESSAGE_REQUESTS": "10",
    "BATCHWRIGHT_MAX_MESSAGE_BATCH_BYTES": "9000",
    "BATCHWRIGHT_ONE_MODEL_PER_BATCH": "true",
    "BATCHWRIGHT_STRICT_MODELS": "true",
    "BATCHWRIGHT_INTERACTIVE_PASSTHROUGH": "true",
    **with_constants(max_part_bytes=PART_BYTES),
}
ISSUER_PORT = free_port()  # the check of tokens runs an issuer there
S3_PORT = free_port()  # the check of data in place runs an S3 server there
DATA = "s3://batchwright-test/data/"
_IN_PLACE = {
    "BATCHWRIGHT_S3_ENDPOINT_URL": f"http://127.0.0.1:{S3_PORT}",
    "BATCHWRIGHT_S3_PATH_STYLE": "true",
    "BATCHWRIGHT_DATA_LOCATIONS": f'{{"{Profile.RELAXED}": {{"read": ["{DATA}"], "write": ["{DATA}"]}}}}',
    "AWS_ACCESS_KEY_ID": "test-key",
    "AWS_SECRET_ACCESS_KEY": "test-secret",
    "AWS_REGION": "us-east-1",
}
_KEYS = {
    "BATCHWRIGHT_AUTH": "api_key",
    "BATCHWRIGHT_OIDC_ISSUER": f"http://127.0.0.1:{ISSUER_PORT}",
    "BATCHWRIGHT_OIDC_AUDIENCE": "batches",
}
# The fuzzer waits until a stream has ended, also if it has paused the batch. Receivers of webhooks run here.
_ORDINARY = {
    **with_constants(stream_seconds=2),
    "BATCHWRIGHT_WEBHOOK_ALLOWED_NETWORKS": '["127.0.0.0/8"]',
    **_IN_PLACE,
}


class Places:
    def __init__(self, opened: ExitStack) -> None:
        self._opened = opened
        self._stacks: dict[bool, Stack] = {}
        self._urls: dict[tuple[Place, Profile], str] = {}

    def stack(self, place: Place) -> Stack:
        """Return the running stack for this kind of place. `tight` has its own stack with small limits; all
        other kinds share one.
        """
        tight = place == "tight"
        if tight not in self._stacks:
            settings = TIGHT if tight else _ORDINARY
            self._stacks[tight] = self._opened.enter_context(dev("--workers", "1", data=None, **settings))
        return self._stacks[tight]

    def url(self, place: Place, profile: Profile) -> str:
        """Return the URL of an API with this profile (relaxed or strict).

        Workers need no profile, because each batch stores its own.
        """
        stack = self.stack(place)
        if profile is Profile.RELAXED and place != "keys":
            return stack.now.api
        if (place, profile) not in self._urls:
            settings = {"tight": TIGHT, "keys": _KEYS, "ordinary": _ORDINARY}[place]
            api = _api(_environment(stack.now, profile) | settings)
            self._urls[place, profile] = self._opened.enter_context(api)
        return self._urls[place, profile]


@contextmanager
def _api(settings: dict[str, str]) -> Generator[str]:
    port = free_port()
    environment = {**os.environ, **SETTINGS, **settings, "BATCHWRIGHT_API_PORT": str(port)}
    with subprocess.Popen([sys.executable, "-m", "batchwright.api"], env=environment) as process:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(url))
        yield url
        process.terminate()
        process.wait(120)


def _environment(addresses: Addresses, profile: Profile) -> dict[str, str]:
    settings = {
        "database_url": addresses.postgres,
        "temporal_address": addresses.temporal,
        "temporal_namespace": addresses.namespace,
        "storage_dir": str(Path(addresses.data) / "objects"),
        "backends": f'["{addresses.simulator}"]',
        "profile": profile.value,
    }
    return {f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()}


def _answers(url: str) -> bool:
    """Return True if the API is ready. Then it lists models, or requires a key for the list."""
    try:
        if get(url + "/readyz").status_code != 200:
            return False
        models = get(url + "/v1/models")
    except httpx.TransportError:
        return False
    return models.status_code == 401 or (models.is_success and bool(models.json()["data"]))
