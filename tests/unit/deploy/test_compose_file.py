"""docker-compose.yml: everything that it names exists, and other machines cannot reach its services."""

import re

import pytest

from batchwright.settings import Settings
from tests.unit.deploy.files import Service, compose, image_environment

pytestmark = pytest.mark.integration

SERVICES = compose().services
OURS = {name: service for name, service in SERVICES.items() if service.ours}
LASTING = {name: service for name, service in SERVICES.items() if service.restart != "no"}
ONE_SHOT = set(SERVICES) - set(LASTING)


@pytest.mark.parametrize("name", SERVICES)
def test_a_foreign_image_is_pinned_to_the_bytes_of_a_release(name: str) -> None:
    service = SERVICES[name]
    if service.ours:
        assert service.image == "${BATCHWRIGHT_IMAGE:-batchwright:dev}"
    else:
        assert re.fullmatch(
            r"[a-z/]+(-[a-z]+)*:v?\d+(\.\d+){1,2}(-[a-z]+)?@sha256:[0-9a-f]{64}", service.image
        )


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_open_to_this_machine_only(name: str) -> None:
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name].ports)


@pytest.mark.parametrize("name", SERVICES)
def test_every_mounted_file_exists(name: str) -> None:
    assert [path for path in SERVICES[name].files if not path.exists()] == []


@pytest.mark.parametrize("name", SERVICES)
def test_services_wait_for_healthy_dependencies(name: str) -> None:
    for other, how in SERVICES[name].depends_on.items():
        assert how.condition == (
            "service_completed_successfully" if other in ONE_SHOT else "service_healthy"
        ), other
        assert other in ONE_SHOT or SERVICES[other].healthcheck


# The UI's image has no documented program to ask with, and nothing waits for it.
@pytest.mark.parametrize("name", sorted(LASTING.keys() - {"temporal-ui"}))
def test_long_running_services_have_a_health_check(name: str) -> None:
    check = LASTING[name].healthcheck
    assert check
    assert check.test[0] == "CMD"


@pytest.mark.parametrize("name", OURS)
def test_a_batchwright_container_has_no_more_rights_than_it_needs(name: str) -> None:
    service = OURS[name]
    assert service.read_only
    assert service.cap_drop == ["ALL"]
    assert service.security_opt == ["no-new-privileges:true"]
    assert service.user == "10001:10001"
    spool = image_environment()["BATCHWRIGHT_SPOOL_DIR"]
    assert [volume.target for volume in service.volumes if not isinstance(volume, str)] == [spool]


@pytest.mark.parametrize("name", SERVICES)
def test_no_container_gains_rights_while_it_runs(name: str) -> None:
    assert SERVICES[name].security_opt == ["no-new-privileges:true"]


@pytest.mark.parametrize("name", OURS)
def test_only_existing_settings_are_set(name: str) -> None:
    names = {each for each in OURS[name].environment if each.startswith("BATCHWRIGHT_")}
    assert names <= {f"BATCHWRIGHT_{field.upper()}" for field in Settings.model_fields}


def test_backends_are_chosen_without_an_edit_and_may_be_on_this_machine() -> None:
    for name in ("api", "worker"):
        chosen = OURS[name].environment["BATCHWRIGHT_BACKENDS"]
        assert chosen == '${BATCHWRIGHT_BACKENDS:-["http://simulator:9000"]}'
        assert OURS[name].extra_hosts == ["host.docker.internal:host-gateway"]


def test_callers_need_a_key_unless_the_user_chooses_otherwise() -> None:
    assert OURS["api"].environment["BATCHWRIGHT_AUTH"] == "${BATCHWRIGHT_AUTH:-api_key}"
    assert all("BATCHWRIGHT_AUTH" not in OURS[name].environment for name in OURS.keys() - {"api"})


def test_every_password_is_the_one_for_development() -> None:
    secrets = [
        value
        for service in SERVICES.values()
        for variable, value in service.environment.items()
        if re.search("PASSWORD|PWD|SECRET|ACCESS_KEY", variable)
    ]
    assert set(secrets) == {"development-only"}
    url = OURS["api"].environment["BATCHWRIGHT_DATABASE_URL"]
    assert url.split("@")[0] == "postgresql://batchwright:development-only"


def test_a_worker_has_time_for_its_drain() -> None:
    drain = float(Settings.model_fields["drain_seconds"].default)
    for name in ("worker", "api"):
        assert seconds(OURS[name]) >= drain + 15


def test_named_volumes_are_declared_and_used() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.volumes]
    mounts = [volume for volume in volumes if isinstance(volume, str) and not volume.startswith("./")]
    assert {mount.split(":")[0] for mount in mounts} == set(compose().named_volumes)


def seconds(service: Service) -> int:
    return int(service.stop_grace_period.removesuffix("s"))
