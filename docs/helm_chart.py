"""Generates parts of the Helm chart: the schema of the settings, and the table of the values."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import JsonValue

from batchwright.settings import SECRETS, Settings
from batchwright.settings.setting_levels import LEVEL

CHART = Path(__file__).parents[1] / "deploy" / "helm" / "batchwright"
Schema = dict[str, JsonValue]

# The chart has its own values for these settings, or only the command line reads them.
OWN = frozenset(
    {
        "api_host",
        "api_key",
        "api_port",
        "auth",
        "build_id",
        "codec_host",
        "codec_origins",
        "codec_port",
        "deployment_name",
        "metrics_host",
        "metrics_port",
        "registry",
        "secrets_dir",
        "spool_dir",
        "storage_dir",
        "temporal_address",
        "temporal_api_key_file",
        "temporal_namespace",
        "temporal_tls_ca_file",
        "temporal_tls_cert_file",
        "temporal_tls_key_file",
        "tenant",
        "url",
    }
)
_BEGIN, _END = "<!-- values: made by `make docs` -->\n", "<!-- end of values -->\n"
_COMMENT = re.compile(r"(?P<indent> *)# -- (?P<text>.+)")
_KEY = re.compile(r"(?P<indent> *)(?P<key>\w+):(?P<value>.*)")


def pages() -> dict[Path, str]:
    """Return the text of the generated files, by path."""
    return {CHART / "values.schema.json": _values_schema(), CHART / "README.md": _readme()}


def setting_names() -> list[str]:
    """Return the names of the settings that the value `settings` of the chart may contain.

    Secrets are left out, because the chart writes these settings to a ConfigMap.
    """
    return [name for name in Settings.model_fields if name not in OWN | SECRETS]


def _values_schema() -> str:
    path = CHART / "values.schema.json"
    schema: dict[str, dict[str, JsonValue]] = json.loads(path.read_text())
    made: dict[str, dict[str, JsonValue]] = Settings.model_json_schema(
        by_alias=False, ref_template="#/definitions/{model}"
    )
    definitions = schema["definitions"] | made["$defs"]
    definitions["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: made["properties"][name] for name in setting_names()},
    }
    schema["definitions"] = {name: _plain(value) for name, value in sorted(definitions.items())}
    return json.dumps(schema, indent=2) + "\n"


def _plain(value: JsonValue) -> JsonValue:
    """Return a JSON schema without the titles, defaults and levels of importance, which the chart does not
    need.
    """
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _plain(item) for key, item in value.items() if key not in ("title", "default", LEVEL)}


def _readme() -> str:
    path = CHART / "README.md"
    before, _, rest = path.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    rows = [f"| `{key}` | {default} | {text} |" for key, default, text in _values()]
    table = "\n| value | default | meaning |\n|---|---|---|\n" + "\n".join(rows) + "\n\n"
    return before + _BEGIN + table + _END + after


def _values() -> Iterator[tuple[str, str, str]]:
    """Yield the path, default and meaning of each value in `values.yaml` that has a `# --` comment.

    The path is the names of the value and its parents, joined by dots. The comment is the meaning.
    """
    text = (CHART / "values.yaml").read_text()
    values: JsonValue = yaml.safe_load(text)
    parents: list[tuple[int, str]] = []
    meaning = ""
    for line in text.splitlines():
        if comment := _COMMENT.fullmatch(line):
            meaning = comment["text"]
        elif key := _KEY.fullmatch(line):
            depth = len(key["indent"])
            parents = [*(parent for parent in parents if parent[0] < depth), (depth, key["key"])]
            if meaning:
                path = [name for _, name in parents]
                yield ".".join(path), _default(values, path), meaning.replace("|", "\\|")
                meaning = ""


def _default(values: JsonValue, path: list[str]) -> str:
    for name in path:
        assert isinstance(values, dict)
        values = values[name]
    return f"`{json.dumps(values)}`" if values not in ("", None) else "unset"
