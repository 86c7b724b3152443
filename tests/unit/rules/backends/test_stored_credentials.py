"""A run-time change can neither send a stored key or certificate to another host nor weaken its TLS."""

import pytest

from batchwright.contracts.model_registry.backend_config import HEADER_SETTINGS, BackendConfig
from batchwright.contracts.model_registry.registry_config import GatewayConfig, ModelConfig
from batchwright.rules.backends.stored_credentials import find_misuse, without_misuse

KEY = BackendConfig(url="https://one:8000", api_key_name="key", tls_ca_cert_file="/ca/one")
TRUSTED = [
    KEY,
    BackendConfig(url="http://plain", api_key_name="open"),
    BackendConfig(url="https://lax", api_key_name="lax", tls_insecure_skip_verify=True),
    BackendConfig(url="https://file", api_key_file="/keys/file", api_key_name=""),
    BackendConfig(url="https://mutual", tls_client_cert_file="/me.pem", tls_client_key_file="/me.key"),
    BackendConfig(url="https://two", tls_ca_cert_file="/ca/two"),
    GatewayConfig(url="https://gateway"),
]
CERTIFICATE = {"tls_client_cert_file": "/me.pem", "tls_client_key_file": "/me.key"}
SAFE: list[dict[str, object]] = [
    {"url": "http://anywhere"},
    {"url": "https://anywhere", "tls_insecure_skip_verify": True},
    {"url": "https://anywhere", "tls_ca_cert_file": "/ca/two"},
    {"url": "https://one:8000", "api_key_name": "key", "tls_ca_cert_file": "/ca/one", "weight": 3},
    {"url": "https://one:9000", "api_key_name": "key", "tls_ca_cert_file": "/ca/one"},
    {"url": "https://plain", "api_key_name": "open"},
    {"url": "https://lax", "api_key_name": "lax", "tls_insecure_skip_verify": True},
    {"url": "https://file/v1", "api_key_file": "/keys/file"},
    {"url": "https://mutual:444", **CERTIFICATE},
]
UNSAFE: list[tuple[dict[str, object], str]] = [
    ({"url": "https://else", "api_key_name": "key"}, "api_key_name"),
    ({"url": "http://one:8000", "api_key_name": "key", "tls_ca_cert_file": "/ca/one"}, "api_key_name"),
    ({"url": "https://else", "api_key_name": "unknown"}, "api_key_name"),
    ({"url": "https://else", "api_key_file": "/keys/file"}, "api_key_file"),
    ({"url": "https://file", "api_key_env": "HOME"}, "api_key_env"),
    (
        {
            "url": "https://one:8000",
            "api_key_name": "key",
            "tls_ca_cert_file": "/ca/one",
            "tls_insecure_skip_verify": True,
        },
        "tls_insecure_skip_verify",
    ),
    (
        {"url": "https://lax:444", "api_key_name": "lax", "tls_insecure_skip_verify": True},
        "tls_insecure_skip_verify",
    ),
    ({"url": "https://one:8000", "api_key_name": "key", "tls_ca_cert_file": "/ca/two"}, "tls_ca_cert_file"),
    ({"url": "https://one:8000", "api_key_name": "key"}, "tls_ca_cert_file"),
    ({"url": "https://else", **CERTIFICATE}, "tls_client_cert_file"),
    ({"url": "https://mutual", **CERTIFICATE, "tls_ca_cert_file": "/ca/two"}, "tls_ca_cert_file"),
    ({"url": "https://mutual", **CERTIFICATE, "tls_insecure_skip_verify": True}, "tls_insecure_skip_verify"),
]


def model(fields: dict[str, object]) -> ModelConfig:
    return ModelConfig.model_validate({"backends": [{"url": "http://first"}, fields]})


@pytest.mark.parametrize("fields", SAFE, ids=str)
def test_credentials_in_the_file_can_be_used_for_their_host(fields: dict[str, object]) -> None:
    config = model(fields)
    assert find_misuse(config, TRUSTED) is None
    assert without_misuse(config, TRUSTED) == (config, [])


@pytest.mark.parametrize(("fields", "name"), UNSAFE, ids=str)
def test_credentials_for_another_host_are_refused_and_nothing_is_sent(
    fields: dict[str, object], name: str
) -> None:
    config = model({**fields, "weight": 3, "model": "there"})
    found = find_misuse(config, TRUSTED)
    assert found is not None
    assert (found.backend, found.field) == (1, name)
    safe, [problem] = without_misuse(config, TRUSTED)
    assert safe.backends == [
        config.backends[0],
        BackendConfig(url=config.backends[1].url, weight=3, model="there"),
    ]
    assert problem.startswith(f"{name} of the backend {config.backends[1].url}: {found.message}")


def test_the_certificate_of_a_gateway_that_gets_the_global_key_is_checked() -> None:
    gateway = GatewayConfig(url="https://gateway", tls_insecure_skip_verify=True)
    config = ModelConfig(backends=[gateway])
    found = find_misuse(config, TRUSTED)
    assert found is not None
    assert found.field == "tls_insecure_skip_verify"
    [plain] = without_misuse(config, TRUSTED)[0].backends
    assert type(plain) is BackendConfig
    assert find_misuse(ModelConfig(backends=[GatewayConfig(url="https://gateway")]), TRUSTED) is None


def test_headers_of_the_file_are_not_sent_without_a_checked_certificate() -> None:
    file = BackendConfig(url="https://headers", headers={"Ocp-Apim-Subscription-Key": "k"})
    lax = {"url": "https://headers", "tls_insecure_skip_verify": True}
    for field in HEADER_SETTINGS:
        found = find_misuse(model({**lax, field: file.headers}), [file])
        assert found is not None
        assert found.field == "tls_insecure_skip_verify"
    assert find_misuse(model({**lax, "headers": {"X-Own": "1"}}), [file]) is None
