"""Wrong settings: each is reported in one sentence with the setting, its value, and the allowed values."""

import pytest

from batchwright.settings import SettingsError, load

WRONG = {
    ("API_PORT", "many"): "it must be a whole number (it is 'many')",
    ("API_PORT", "70000"): "it must be at most 65535 (it is '70000')",
    ("MAX_LINES", "0"): "it must be at least 1 (it is '0')",
    ("DRAIN_SECONDS", "soon"): "it must be a number (it is 'soon')",
    ("REQUEST_TIMEOUT_SECONDS", "0"): "it must be more than 0 (it is '0')",
    ("STRICT_MODELS", "perhaps"): "it must be true or false (it is 'perhaps')",
    ("LOG_FORMAT", "xml"): "it must be text or json (it is 'xml')",
    ("S3_SSE", "aes"): "it must be AES256 or aws:kms or aws:kms:dsse (it is 'aes')",
    ("PROFILE", "odd"): "it must be 'relaxed' or 'strict' (it is 'odd')",
    ("BUILD_ID", "b" * 64): f"it must have at most 63 characters (it is '{'b' * 64}')",
    ("DEPLOYMENT_NAME", "a.b"): "it must have at most 63 characters, and no dot (it is 'a.b')",
    ("CALLBACK_SECRET", "hunter2"): "it must have at least 32 characters",
    (
        "TENANT_HEADER",
        "X Tenant",
    ): "it must have 1 to 64 characters: letters, digits and '-' (it is 'X Tenant')",
    ("URL", "localhost"): "it must begin with http:// or https:// (it is 'localhost')",
    ("URL", "http://"): "it has no valid host (it is 'http://')",
    ("CALLBACK_URL", "http://["): "it has no valid host (it is 'http://[')",
    (
        "BACKENDS",
        '["http://a:b"]',
    ): "'http://a:b' has no valid host (it is ['http://a:b'])",
    ("DATABASE_URL", "mysql://ada:hunter2@db/x"): "it must begin with postgresql://",
    (
        "STORAGE",
        "s3://key:hunter2@bucket",
    ): "it must not contain a user, a query or a fragment: set keys and options of S3 separately",
    ("URL", "ftp://ada:hunter2@host"): "it must begin with http:// or https://",
    ("DATABASE_URL", "postgresql://["): "it cannot be read as a URL",
    ("API_KEY", "hunter2\n"): "a key has no spaces, line ends or characters beyond ASCII",
    (
        "TENANT",
        "é",
    ): "a tenant has 1 to 64 letters, digits, '.', '_' or '-', the first a letter or digit (it is 'é')",
    ("DRAIN_SECONDS", "1e400"): "it must be at most 1,000,000,000 (it is '1e400')",
    ("FINALIZE_PATIENCE_SECONDS", "1e12"): "it must be at most 1,000,000,000 (it is '1e12')",
    ("MAX_LINES", "9" * 20): f"it must be at most 9,223,372,036,854,775,807 (it is '{'9' * 20}')",
    ("LOG_LEVEL", "x" * 999): f"it must be DEBUG or INFO or WARNING or ERROR (it is 'x{'x' * 298}...)",
    ("BACKENDS", "http://one"): 'it is not JSON, in the form ["...", "..."]',
    ("BACKENDS", '{"a": 1}'): "it must be a JSON list (it is {'a': 1})",
    ("BACKENDS", '["http://one", 3]'): "entry 2 must be a string (it is 3)",
    ("BACKENDS", '["one"]'): "'one' does not begin with http:// or https:// (it is ['one'])",
    ("BACKENDS", '["http://user:secret@one"]'): "a URL in it has a user, query or fragment; a key comes from "
    "BATCHWRIGHT_BACKEND_API_KEY",
    (
        "BACKENDS",
        '["http://one/v1?key=secret"]',
    ): "a URL in it has a user, query or fragment; a key comes from BATCHWRIGHT_BACKEND_API_KEY",
    ("MODELS", "a"): 'it is not JSON, in the form {"...": ...}',
    ("MODELS", "[]"): "it must be a JSON object (it is [])",
    ("MODELS", '{"a": 3}'): "'a' must be a JSON object (it is 3)",
    ("MODELS", '{"a": {"in_flight": 0}}'): "in_flight of 'a' must be at least 1 (it is 0)",
    (
        "MODELS",
        '{"a": {"in_fligth": 5}}',
    ): "in_fligth of 'a' must be removed: no such setting exists (it is 5)",
    ("MODELS", '{"": {}}'): "a name in it must not be empty (it is '')",
    ("TENANT_WEIGHTS", '{"a": "x"}'): "'a' must be a number (it is 'x')",
    ("TENANT_WEIGHTS", '{"a": 0}'): "'a' must be at least 0.001 (it is 0)",
    ("TENANT_WEIGHTS", '{"a": -1}'): "'a' must be at least 0.001 (it is -1)",
    ("TENANT_WEIGHTS", '{"a": 0.0009}'): "'a' must be at least 0.001 (it is 0.0009)",
    ("TENANT_WEIGHTS", '{"a": 1000.5}'): "'a' must be at most 1000 (it is 1000.5)",
    ("TENANT_WEIGHTS", '{"a": 1e308}'): "'a' must be at most 1000 (it is 1e+308)",
    ("TENANT_WEIGHTS", '{"a": Infinity}'): "'a' must be a finite number (it is inf)",
    ("TENANT_WEIGHTS", '{"a": NaN}'): "'a' must be a finite number (it is nan)",
    ("TENANT_WEIGHTS", '{"a": 1, "b": 2, "a": 3}'): "it has the key 'a' twice: remove one of them",
    (
        "MODELS",
        '{"a": {"in_flight": 1, "in_flight": 2}}',
    ): "it has the key 'in_flight' twice: remove one of them",
    ("API_CORS_ORIGINS", '["app.example.com"]'): "'app.example.com' is not an origin such as "
    "https://app.example.com (it is ['app.example.com'])",
    (
        "API_CORS_ORIGINS",
        '["https://app.example.com/home"]',
    ): "'https://app.example.com/home' is not an origin "
    "such as https://app.example.com (it is ['https://app.example.com/home'])",
    ("API_CORS_ORIGINS", '["https://*.example.com"]'): "'https://*.example.com' is not an origin such as "
    "https://app.example.com (it is ['https://*.example.com'])",
    ("API_HOSTS", '["batches.example.com:8000"]'): "'batches.example.com:8000' is not a host name such as "
    "batches.example.com (it is ['batches.example.com:8000'])",
    ("API_HOSTS", '["*.example.com"]'): "'*.example.com' is not a host name such as batches.example.com "
    "(it is ['*.example.com'])",
    ("PAYLOAD_KEYS", '["secret"]'): "a key is not given as id=file:PATH or id=env:NAME",
}


@pytest.mark.parametrize(("setting", "value"), WRONG)
def test_a_wrong_setting_is_reported_in_one_sentence(
    setting: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"BATCHWRIGHT_{setting}", value)
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value) == f"BATCHWRIGHT_{setting} is wrong: {WRONG[setting, value]}."


def test_a_setting_of_opentelemetry_is_named_as_opentelemetry_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "no!")
    with pytest.raises(SettingsError, match=r"^OTEL_SDK_DISABLED is wrong: it must be true or false \(it is"):
        load()


def test_a_database_url_may_name_several_hosts() -> None:
    url = "postgresql://ada@first:5432,second:5433/batches?target_session_attrs=primary"
    assert load(database_url=url).database_url == url


def test_an_origin_is_stored_as_browsers_send_it() -> None:
    given = ["*", "https://App.example.com/", "http://[::1]:8080", "chrome-extension://abc"]
    assert load(api_cors_origins=given).api_cors_origins == [
        *("*", "https://app.example.com", "http://[::1]:8080", "chrome-extension://abc")
    ]


def test_the_longest_window_must_not_be_shorter_than_the_shortest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHWRIGHT_MIN_WINDOW_SECONDS", "1209601")
    with pytest.raises(SettingsError) as caught:
        load()
    assert str(caught.value) == (
        "BATCHWRIGHT_MAX_WINDOW_SECONDS is wrong: it is less than BATCHWRIGHT_MIN_WINDOW_SECONDS, which is "
        "1209601 (it is 1209600)."
    )
    monkeypatch.setenv("BATCHWRIGHT_MAX_WINDOW_SECONDS", "1209601")
    assert load().max_window_seconds == 1209601
