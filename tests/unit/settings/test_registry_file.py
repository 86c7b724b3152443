"""The registry file: its content, and the sentence that reports each error in it."""

from pathlib import Path

import pytest

from batchwright.settings import SettingsError, load, load_registry, require_backends
from batchwright.settings.registry_file import SecretUnreadable, api_key, iter_backends

GOOD = """
models:
  llama:
    backends:
      - {url: "http://one:8000/v1", weight: 2, priority: 10, request_timeout: 5m, api_key_name: gateway}
      - {url: "https://two", headers: {X-Team: batch}}
    aliases: [gpt-4o-mini]
    fallbacks: [qwen]
    retries: {max_attempts: 3, initial_backoff: 500ms}
  qwen:
    backends: [{url: "http://three"}]
"""
WRONG = {
    "models: [": "line 1: ",
    "models: {a: {backends: [{url: 'http://x', weigth: 2}]}}": (
        "models.a.backends, entry 1, weigth: this key is not known; there are api_key_env,"
    ),
    "modles: {}": "modles: this key is not known; there are gateway, models",
    "models: {a: {backends: [{url: 'http://x'}], alias: [b]}}": "models.a.alias: this key is not known",
    "models:\n  a: {backends: [{url: 'http://x'}]}\n  a: {backends: [{url: 'http://y'}]}": (
        "line 3: 'a' comes twice: merge the two or rename one"
    ),
    "models:\n  ? [a, b]\n  : {}": "line 2: a key is a list or a map: it must be a name",
    "models: {7: {backends: [{url: 'http://x'}]}}": "models.7: YAML reads this name as something else: put",
    "models: {a: {backends: [{url: 'http://x', model: 2024-13-45}]}}": "line 1: this is read as a date and",
    "models: {a: {backends: [{url: 'http://x', weight: !!int x}]}}": "read as a whole number and is none",
    "models: " + "[" * 5000: "it is nested too deeply",
    "models: {a: {backends: [{url: 'http://x', api_key_file: \"a\\0b\"}]}}": "which is not a path",
    "models: {a: {backends: []}}": "models.a.backends: it must have at least 1 of them",
    "models: {a: {}}": "models.a.backends: it must be given",
    "models: {a: {backends: [{}]}}": "models.a.backends, entry 1, url: it must be given",
    "models: {a: {backends: [{url: 'ftp://x'}]}}": "it must begin with http:// or https://",
    "models: {a: {backends: [{url: 'http://u:p@x'}]}}": "it must not contain a user",
    "models: {a: {backends: [{url: 'http://x', weight: 0}]}}": "weight: it must be more than 0",
    "models: {a: {backends: [{url: 'http://x', in_flight: 0}]}}": "in_flight: it must be at least 1",
    "models: {a: {backends: [{url: 'http://x', priority: low}]}}": "priority: it must be a whole number",
    "models: {a: {backends: [{url: 'http://x', priority: 2147483648}]}}": "it must be less than 2147483648",
    "models: {a: {backends: [{url: 'http://x', request_timeout: soon}]}}": "a duration such as 90, 90s or 5m",
    "models: {a: {backends: [{url: 'http://x', headers: {Authorization: k}}]}}": "holds a credential",
    "models: {a: {backends: [{url: 'http://x', headers: {Host: k}}]}}": "is set by Batchwright itself",
    "models: {a: {backends: [{url: 'http://x', api_key_name: a, api_key_env: B}]}}": "only one of api",
    "models: {a: {backends: [{url: 'http://x', api_key_name: ../a}]}}": "be the name of a file: letters,",
    "models: {a: {backends: [{url: 'http://x'}], jobs: {id_field: a..b}}}": "such as data.id",
    "models: {a: {backends: [{url: 'http://x', tls_client_cert_file: a}]}}": "both tls_client_cert_file and",
    "models: {a: {backends: [{url: 'http://x', api_key_name: missing}]}}": "cannot be read (No such file",
    "models: {a: {backends: [{url: 'http://x', api_key_env: BATCHWRIGHT_NONE}]}}": "which is not set: set it",
    "models: {a: {backends: [{url: 'http://x', tls_ca_cert_file: /none}]}}": "tls_ca_cert_file names /none,",
    "gateway: {url: 'http://x'}\nmodels: {a: {backends: [{url: 'http://x'}]}}": "gateway or models, not both",
    "models: {a: {backends: [{url: 'http://x'}], kind: async}}": "kind: it must be 'sync', 'poll' or",
    "models: {a: {backends: [{url: 'http://x'}, {url: 'http://x/v1', weight: 3}]}}": (
        "models.a: it has the backend http://x twice: remove one, or add up their weights"
    ),
    "models: {a: {backends: [{url: 'http://x'}, {url: 'http://x', model: a}]}}": (
        "a: it has the backend http://x twice"
    ),
    "models: {a: {backends: [{url: 'http://x'}], fallbacks: [b, b]}}": "it has the fallback 'b' twice:",
    "models: {a: {backends: [{url: 'http://x'}], retries: {max_backoff: 0}}}": "more than 0",
    "models: {a: {backends: [{url: 'http://x'}], prices: {input: -1}}}": (
        "models.a.prices.input: it must be a number from 0 to 1000000000 with at most 6 decimal places"
    ),
    "models: {a: {backends: [{url: 'http://x'}], prices: {output: cheap}}}": "prices.output: it must be a",
    "models: {a: {backends: [{url: 'http://x'}], prices: {currency: dollars}}}": "it must be three capital",
    "models: {a: {backends: [{url: 'http://x'}], prices: {inputs: 1}}}": (
        "there are cached_input, currency, input, output, request"
    ),
    "models: {a: {backends: [{url: 'http://x'}], prices: {input: 1}}, "
    "b: {backends: [{url: 'http://x'}], prices: {currency: EUR}}}": (
        "the prices of 'a' are in USD, and those of 'b' are in EUR: use one currency for all models"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: poll}}": "it must have jobs.poll_endpoint_template,",
    "models: {a: {backends: [{url: 'http://x'}], jobs: {poll_interval: 3}}}": "kind: poll or kind: callback",
    "models: {a: {backends: [{url: 'http://x'}], kind: poll, jobs: {poll_endpoint_template: /s}}}": (
        "with {id} in it once"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: poll, jobs: {poll_endpoint: /s}}}": (
        "jobs.poll_endpoint: this key is not known; there are callback_field, callback_header,"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback, jobs: {callback_header: Host}}}": (
        "is set by Batchwright itself"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback}}": (
        "models.a.kind: callback needs BATCHWRIGHT_CALLBACK_URL and BATCHWRIGHT_CALLBACK_SECRET: set both"
    ),
    "models: {a: {backends: [{url: 'http://x', headers: {TraceParent: k}}]}}": (
        "models.a.backends, entry 1: the header 'TraceParent' of the backend http://x of 'a' would "
        "replace the trace context of its request: remove it"
    ),
    "models: {a: {backends: [{url: 'http://x'}, {url: 'http://y', headers: {X-A: k, x-a: l}}]}}": (
        "models.a.backends, entry 2: the header 'x-a' of the backend http://y of 'a' is also given as 'X-A'"
    ),
    "models: {a: {backends: [{url: 'http://x', send_dispatch_header: true, headers: {x-source: me}}]}}": (
        "would replace BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it (send_dispatch_header): "
        "remove it"
    ),
    "models: {a: {backends: [{url: 'http://x', batch_headers: {X-A: k, x-a: l}}]}}": (
        "models.a.backends, entry 1: the header 'x-a' of the backend http://x of 'a' is also given as 'X-A'"
    ),
    "gateway: {url: 'http://x', headers: {Content-Encoding: gzip}}": (
        "gateway, headers: the header 'Content-Encoding' of the gateway would replace the description"
    ),
    "gateway: {url: 'http://x', model: a}": "gateway.model: a gateway has no `model`",
    "{}": "gateway, one for all models, or models",
    "models: {a: {backends: [{url: 'http://x'}], aliases: [b]}, b: {backends: [{url: 'http://x'}]}}": (
        "the alias 'b' of 'a' is a model itself"
    ),
    "models: {a: {backends: [{url: 'http://x'}], fallbacks: [z]}}": "the fallback 'z' of 'a' is not a model",
    "models: {a: {backends: [{url: 'http://x'}], fallbacks: [a]}}": "'a' is its own fallback",
}


# The same if a callback URL is configured.
CALLED = {
    "models: {a: {backends: [{url: 'http://x', headers: {x-callback-url: k}}], kind: callback}}": (
        "models.a.backends, entry 1: the header 'x-callback-url' of the backend http://x of 'a' would "
        "replace the URL to call, which is sent as jobs.callback_header: rename one of the two"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback, jobs: {callback_header: TraceState}}}": (
        "models.a.jobs.callback_header: the callback_header 'TraceState' of 'a' would replace the trace"
    ),
    "models: {a: {backends: [{url: 'http://x', send_dispatch_header: true}], kind: callback, jobs: "
    "{callback_header: X-SOURCE}}}": "would replace BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it",
}


def write(directory: Path, text: str) -> dict[str, object]:
    """Write a registry file, and return the settings of a process that uses it."""
    path = directory / "models.yaml"
    path.write_text(text)
    return {"registry": path, "secrets_dir": directory}


@pytest.mark.parametrize("text", [*WRONG, *CALLED])
def test_an_error_is_reported_with_file_place_and_remedy(text: str, tmp_path: Path) -> None:
    calls = {"callback_url": "http://api", "callback_secret": "s" * 32} if text in CALLED else {}
    with pytest.raises(SettingsError) as caught:
        load(**write(tmp_path, text), **calls)
    sentence = str(caught.value)
    assert sentence.startswith(f"BATCHWRIGHT_REGISTRY: {tmp_path}/models.yaml: ")
    assert {**WRONG, **CALLED}[text] in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_file_says_everything_about_models_and_backends(tmp_path: Path) -> None:
    (tmp_path / "gateway").write_text("sk-1\n")
    config = load_registry(load(**write(tmp_path, GOOD)))
    assert config is not None
    one, two = config.models["llama"].backends
    assert (one.url, one.weight, one.request_timeout) == ("http://one:8000", 2.0, 300.0)
    assert (one.priority, two.priority) == (10, None)
    assert two.headers == {"X-Team": "batch"}
    assert config.models["llama"].retries.initial_backoff == 0.5
    assert [place for place, _ in iter_backends(config)][2] == "models.qwen.backends, entry 1"


def test_headers_without_a_reserved_name_are_accepted(tmp_path: Path) -> None:
    text = "models: {a: {backends: [{url: 'http://x', headers: {X-Source: me, X-Callback-Url: here}}]}}"
    config = load_registry(load(**write(tmp_path, text)))
    assert config is not None
    assert config.models["a"].backends[0].headers == {"X-Source": "me", "X-Callback-Url": "here"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("traceparent", "would replace the trace context of its request: choose another"),
        ("Authorization", "holds a credential"),
        ("Host", "set by Batchwright itself"),
        ("two words", "is not a header name"),
    ],
)
def test_the_dispatch_header_cannot_have_a_reserved_name(name: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        load(dispatch_header=name)
    assert str(caught.value).startswith("BATCHWRIGHT_DISPATCH_HEADER is wrong: ")


def test_a_missing_registry_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file or directory\.$"):
        load(registry=tmp_path / "none.yaml")


def test_a_registry_and_a_list_of_backends_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="both set: unset one of them"):
        load(**write(tmp_path, "gateway: {url: 'http://x'}"), backends=["http://y"])


def test_a_changed_key_file_is_read_again(tmp_path: Path) -> None:
    config = write(tmp_path, "gateway: {url: 'http://x', api_key_name: key}")
    (tmp_path / "key").write_text("one\n")
    registry = load_registry(load(**config))
    assert registry is not None
    assert registry.gateway is not None
    assert api_key(registry.gateway, tmp_path) == "one"
    (tmp_path / "key").write_text("two")
    assert api_key(registry.gateway, tmp_path) == "two"
    (tmp_path / "key").write_text("two\nlines")
    with pytest.raises(SecretUnreadable, match="one line of printable ASCII"):
        api_key(registry.gateway, tmp_path)


def test_a_registry_file_says_where_requests_are_sent(tmp_path: Path) -> None:
    file = tmp_path / "registry.yaml"
    file.write_text("models: {a: {backends: [{url: 'http://x'}]}}")
    require_backends(load(backends=[], registry=file))
