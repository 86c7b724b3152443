"""`batchwright doctor`: settings that are valid but cannot work."""

import pytest

from batchwright.settings import load
from batchwright.starter.diagnostics.checks import check_settings, now


@pytest.mark.parametrize(
    ("endpoint", "warned"),
    [
        ("http://collector:4317", True),
        ("https://collector:4317/otlp", True),
        ("http://collector:4318", False),
        ("https://collector", False),
        ("", False),
    ],
)
async def test_a_collector_with_the_port_of_grpc_is_named(endpoint: str, warned: bool) -> None:
    found = await check_settings(load(otel_exporter_otlp_endpoint=endpoint), now)
    assert any("4317" in each.message and "4318" in each.remedy for each in found) is warned


async def test_a_collector_is_not_checked_while_tracing_is_off() -> None:
    chosen = load(otel_exporter_otlp_endpoint="http://collector:4317", otel_sdk_disabled=True)
    assert not any("4317" in each.message for each in await check_settings(chosen, now))
