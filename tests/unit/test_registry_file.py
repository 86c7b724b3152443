"""The registry's file: what it may say, and the one sentence for what is wrong with it."""

from pathlib import Path

import pytest

from batchwright.settings import SettingsError, load, registry_of
from batchwright.settings.registry import SecretUnreadable, api_key, backends_of

GOOD = """
models:
  llama:
    backends:
      - {url: "http://one:8000/v1", weight: 2, request_timeout: 5m, api_key_name: gateway}
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
    "models: {a: {backends: [{url: 'http://x', api_key_file: \"a\\0b\"}]}}": "which is no path: correct it",
    "models: {a: {backends: []}}": "models.a.backends: it must have at least 1 of them",
    "models: {a: {}}": "models.a.backends: it must be given",
    "models: {a: {backends: [{}]}}": "models.a.backends, entry 1, url: it must be given",
    "models: {a: {backends: [{url: 'ftp://x'}]}}": "it must begin with http:// or https://",
    "models: {a: {backends: [{url: 'http://u:p@x'}]}}": "it must have no user",
    "models: {a: {backends: [{url: 'http://x', weight: 0}]}}": "weight: it must be more than 0",
    "models: {a: {backends: [{url: 'http://x', request_timeout: soon}]}}": "a duration such as 90, 90s or 5m",
    "models: {a: {backends: [{url: 'http://x', headers: {Authorization: k}}]}}": "holds a credential",
    "models: {a: {backends: [{url: 'http://x', headers: {Host: k}}]}}": "is made by Batchwright itself",
    "models: {a: {backends: [{url: 'http://x', api_key_name: a, api_key_env: B}]}}": "only one of api",
    "models: {a: {backends: [{url: 'http://x', api_key_name: ../a}]}}": "match the pattern",
    "models: {a: {backends: [{url: 'http://x', tls_client_cert_file: a}]}}": "both tls_client_cert_file and",
    "models: {a: {backends: [{url: 'http://x', api_key_name: missing}]}}": "cannot be read (No such file",
    "models: {a: {backends: [{url: 'http://x', api_key_env: BATCHWRIGHT_NONE}]}}": "which is not set: set it",
    "models: {a: {backends: [{url: 'http://x', tls_ca_cert_file: /none}]}}": "tls_ca_cert_file names /none,",
    "gateway: {url: 'http://x'}\nmodels: {a: {backends: [{url: 'http://x'}]}}": "gateway or models, not both",
    "models: {a: {backends: [{url: 'http://x'}], kind: async}}": "kind: it must be 'sync', 'poll' or",
    "models: {a: {backends: [{url: 'http://x'}], hedge_after: 90s}}": "two backends, or else no hedge_after",
    "models: {a: {backends: [{url: 'http://x'}, {url: 'http://y'}], hedge_after: 0}}": "more than 0",
    "models: {a: {backends: [{url: 'http://x'}], kind: poll}}": "it must have jobs.poll_endpoint_template,",
    "models: {a: {backends: [{url: 'http://x'}], jobs: {poll_interval: 3}}}": "kind: poll or kind: callback",
    "models: {a: {backends: [{url: 'http://x'}], kind: poll, jobs: {poll_endpoint_template: /s}}}": (
        "with {id} in it once"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: poll, jobs: {poll_endpoint: /s}}}": (
        "jobs.poll_endpoint: this key is not known; there are callback_field, callback_header,"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback, jobs: {callback_header: Host}}}": (
        "is made by Batchwright itself"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback}}": (
        "models.a.kind: callback needs BATCHWRIGHT_CALLBACK_URL and BATCHWRIGHT_CALLBACK_SECRET: set both"
    ),
    "models: {a: {backends: [{url: 'http://x', headers: {TraceParent: k}}]}}": (
        "models.a.backends, entry 1: the header 'TraceParent' of the backend http://x of 'a' would "
        "stand for the trace of its request: take it away"
    ),
    "models: {a: {backends: [{url: 'http://x'}, {url: 'http://y', headers: {X-A: k, x-a: l}}]}}": (
        "models.a.backends, entry 2: the header 'x-a' of the backend http://y of 'a' is there as 'X-A' too"
    ),
    "models: {a: {backends: [{url: 'http://x', dispatched: true, headers: {x-source: me}}]}}": (
        "would stand for BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it (dispatched): take it away"
    ),
    "gateway: {url: 'http://x', headers: {Content-Encoding: gzip}}": (
        "gateway, headers: the header 'Content-Encoding' of the gateway would stand for what the body is"
    ),
    "gateway: {url: 'http://x', model: a}": "gateway.model: a gateway has no model",
    "{}": "gateway, one for all models, or models",
    "models: {a: {backends: [{url: 'http://x'}], aliases: [b]}, b: {backends: [{url: 'http://x'}]}}": (
        "the alias 'b' of 'a' is a model itself"
    ),
    "models: {a: {backends: [{url: 'http://x'}], fallbacks: [z]}}": "the fallback 'z' of 'a' is no model",
    "models: {a: {backends: [{url: 'http://x'}], fallbacks: [a]}}": "'a' falls back on itself",
}


# The same where backends can be told what to call.
CALLED = {
    "models: {a: {backends: [{url: 'http://x', headers: {x-callback-url: k}}], kind: callback}}": (
        "models.a.backends, entry 1: the header 'x-callback-url' of the backend http://x of 'a' would stand "
        "for the URL to call, which is sent as jobs.callback_header: rename one of the two"
    ),
    "models: {a: {backends: [{url: 'http://x'}], kind: callback, jobs: {callback_header: TraceState}}}": (
        "models.a.jobs.callback_header: the callback_header 'TraceState' of 'a' would stand for the trace"
    ),
    "models: {a: {backends: [{url: 'http://x', dispatched: true}], kind: callback, jobs: {callback_header: "
    "X-SOURCE}}}": "would stand for BATCHWRIGHT_DISPATCH_HEADER, which marks requests to it (dis",
}


def write(directory: Path, text: str) -> dict[str, object]:
    """Settings of a process with such a file."""
    path = directory / "models.yaml"
    path.write_text(text)
    return {"registry": path, "secrets_dir": directory}


@pytest.mark.parametrize("text", [*WRONG, *CALLED])
def test_what_is_wrong_is_told_with_file_place_and_remedy(text: str, tmp_path: Path) -> None:
    calls = {"callback_url": "http://api", "callback_secret": "s" * 32} if text in CALLED else {}
    with pytest.raises(SettingsError) as told:
        load(**write(tmp_path, text), **calls)
    sentence = str(told.value)
    assert sentence.startswith(f"BATCHWRIGHT_REGISTRY: {tmp_path}/models.yaml: ")
    assert {**WRONG, **CALLED}[text] in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_a_file_says_everything_about_models_and_backends(tmp_path: Path) -> None:
    (tmp_path / "gateway").write_text("sk-1\n")
    config = registry_of(load(**write(tmp_path, GOOD)))
    assert config is not None
    one, two = config.models["llama"].backends
    assert (one.url, one.weight, one.request_timeout) == ("http://one:8000", 2.0, 300.0)
    assert two.headers == {"X-Team": "batch"}
    assert config.models["llama"].retries.initial_backoff == 0.5
    assert [place for place, _ in backends_of(config)][2] == "models.qwen.backends, entry 1"


def test_headers_that_stand_for_nothing_of_ours_are_taken(tmp_path: Path) -> None:
    text = "models: {a: {backends: [{url: 'http://x', headers: {X-Source: me, X-Callback-Url: here}}]}}"
    config = registry_of(load(**write(tmp_path, text)))
    assert config is not None
    assert config.models["a"].backends[0].headers == {"X-Source": "me", "X-Callback-Url": "here"}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("traceparent", "would stand for the trace of its request: choose another"),
        ("Authorization", "holds a credential"),
        ("Host", "made by Batchwright itself"),
        ("two words", "is no name of a header"),
    ],
)
def test_the_header_that_marks_requests_stands_for_no_other(name: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as told:
        load(dispatch_header=name)
    assert str(told.value).startswith("BATCHWRIGHT_DISPATCH_HEADER is wrong: ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml cannot be read: No such file or directory\.$"):
        load(registry=tmp_path / "none.yaml")


def test_a_registry_and_a_list_of_backends_are_not_taken_together(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="both set: take one of them away"):
        load(**write(tmp_path, "gateway: {url: 'http://x'}"), backends=["http://y"])


def test_a_key_is_read_as_it_is_now(tmp_path: Path) -> None:
    config = write(tmp_path, "gateway: {url: 'http://x', api_key_name: key}")
    (tmp_path / "key").write_text("one\n")
    registry = registry_of(load(**config))
    assert registry is not None
    assert registry.gateway is not None
    assert api_key(registry.gateway, tmp_path) == "one"
    (tmp_path / "key").write_text("two")
    assert api_key(registry.gateway, tmp_path) == "two"
    (tmp_path / "key").write_text("two\nlines")
    with pytest.raises(SecretUnreadable, match="one line of printable ASCII"):
        api_key(registry.gateway, tmp_path)
