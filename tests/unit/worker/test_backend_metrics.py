"""Metrics of backends: each request that tests if a backend is reachable counts once, and gauges are current
at each scrape.
"""

from datetime import UTC, datetime

from prometheus_client.parser import text_string_to_metric_families

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.registry_config import ModelConfig
from batchwright.telemetry.metrics import Metrics
from batchwright.worker.backend_metrics import register_backend_metrics
from tests.unit.inference.registry.test_backend_registry import ONE, TWO, ListingBackends

A, B = "a", "b"


class Scraped(ListingBackends):
    """Several backends, and the metrics of a worker that uses these backends."""

    def __init__(self, urls: list[str], **lists: list[str]) -> None:
        super().__init__(urls, **lists)
        self.metrics = Metrics()
        register_backend_metrics(self.registry, self.metrics)

    def scrape(self, name: str, **labels: str) -> float | None:
        """Return the value of a metric series; None if there is no such series."""
        found = [
            sample.value
            for family in text_string_to_metric_families(self.metrics.render().decode())
            for sample in family.samples
            if sample.name == f"batchwright_{name}" and sample.labels == labels
        ]
        assert len(found) < 2
        return found[0] if found else None

    async def register(self, model: str, *backends: dict[str, object]) -> None:
        config = ModelConfig(backends=[BackendConfig.model_validate(backend) for backend in backends])
        await self.database.model_changes.put(model, config, datetime.now(UTC), lambda rows: None)
        await self.registry.refresh_changes()


async def test_a_probe_counts_once_even_if_the_registry_is_read_often() -> None:
    fleet = Scraped([ONE, TWO], one=[A])
    await fleet.registry.refresh()
    for _ in range(3):
        await fleet.registry.refresh_changes()
    assert fleet.scrape("backend_latency_seconds_count", backend=ONE) == 1
    await fleet.registry.refresh()
    assert fleet.scrape("backend_latency_seconds_count", backend=ONE) == 2
    assert fleet.scrape("backend_latency_seconds_count", backend=TWO) == 2  # unanswered, but probed


async def test_backends_their_health_and_distinct_models_are_counted() -> None:
    fleet = Scraped([ONE, TWO], one=[A, B], two=[B])
    await fleet.registry.refresh()
    assert counts(fleet) == (2, 2, 2)
    del fleet.lists[ONE]
    await fleet.registry.refresh()
    assert counts(fleet) == (2, 1, 1)
    assert (fleet.scrape("backend_up", backend=ONE), fleet.scrape("backend_up", backend=TWO)) == (0, 1)


async def test_a_backend_is_registered_before_its_first_probe_and_not_yet_up_or_down() -> None:
    fleet = Scraped([], one=[A])
    await fleet.registry.refresh()
    await fleet.register("m", {"url": ONE})
    assert counts(fleet) == (1, 0, 0)
    assert fleet.scrape("backend_up", backend=ONE) is None
    await fleet.registry.refresh()
    assert counts(fleet) == (1, 1, 1)
    assert fleet.scrape("backend_up", backend=ONE) == 1


async def test_a_gauge_has_the_value_at_the_scrape() -> None:
    fleet = Scraped([ONE], one=[A])
    await fleet.registry.refresh()
    (lane,) = fleet.registry.routers[0].upstreams
    lane.outstanding = 3
    assert fleet.scrape("backend_outstanding_requests", model=A, backend=ONE) == 3
    lane.outstanding, lane.backend.is_unreachable = 0, True
    assert fleet.scrape("backend_outstanding_requests", model=A, backend=ONE) == 0
    assert fleet.scrape("backends_healthy") == 0


async def test_a_url_with_several_keys_or_names_is_one_backend() -> None:
    fleet = Scraped([], one=["x", "y"])
    await fleet.registry.refresh()
    await fleet.register("m", {"url": ONE, "model": "x"}, {"url": ONE, "model": "y", "request_timeout": 5})
    await fleet.registry.refresh()
    for lane in fleet.registry.routers[0].upstreams:
        lane.outstanding = 2
    assert len(fleet.registry.backends) == 2
    assert counts(fleet) == (1, 1, 1)
    assert fleet.scrape("backend_outstanding_requests", model="m", backend=ONE) == 4


async def test_removed_backends_leave_the_gauges_at_the_next_scrape() -> None:
    fleet = Scraped([], one=[A])
    await fleet.register("m", {"url": ONE})
    await fleet.registry.refresh()
    assert fleet.scrape("backend_up", backend=ONE) == 1
    await fleet.database.model_changes.revert("m", lambda rows: None)
    await fleet.registry.refresh_changes()
    assert counts(fleet) == (0, 0, 0)
    assert fleet.scrape("backend_up", backend=ONE) is None
    assert fleet.scrape("backend_circuit_open", model="m", backend=ONE) is None


def counts(fleet: Scraped) -> tuple[float | None, ...]:
    return tuple(fleet.scrape(name) for name in ("backends", "backends_healthy", "models_available"))
