"""Generates the reference page of the registry file: each key with its default and its meaning."""

from typing import get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from batchwright.contracts.model_registry.backend_config import BackendConfig
from batchwright.contracts.model_registry.backend_job_config import JobConfig
from batchwright.contracts.model_registry.price_config import PriceConfig
from batchwright.contracts.model_registry.registry_config import (
    GatewayConfig,
    LimitConfig,
    ModelConfig,
    RegistryConfig,
    RetryConfig,
)

_SECTIONS: dict[str, type[BaseModel]] = {
    "The file": RegistryConfig,
    "A model": ModelConfig,
    "A backend": BackendConfig,
    "jobs": JobConfig,
    "retries": RetryConfig,
    "limits": LimitConfig,
    "prices": PriceConfig,
}
_INTRO = """\
`BATCHWRIGHT_REGISTRY` names this YAML file. Every process checks it when it starts. If it is wrong, the
process says what and where in one sentence, and ends with exit code 2. A duration is a number of seconds,
or has a unit: `500ms`, `90s`, `5m`, `1h`. No entry inherits from another.
[How to use it](../how-to/several-backends.md)."""
_EXAMPLE = """\
```yaml
models:
  llama-3.1-8b:
    backends:
      - url: http://vllm-0:8000
        weight: 2
      - url: https://gateway.example.com/llama
        model: meta/llama-3.1-8b-instruct
        api_key_name: gateway
        request_timeout: 5m
    aliases: [gpt-4o-mini]
    fallbacks: [qwen2.5-7b]
    prices: {currency: USD, input: 0.05, output: 0.08}
  qwen2.5-7b:
    backends: [{url: http://vllm-1:8000}]
```"""


def page(generated: str) -> str:
    """Return the text of the page. `generated` is the comment that marks a page as generated."""
    tables = [f"## {title}\n\n{_table(entry)}" for title, entry in _SECTIONS.items()]
    gateway = "## The gateway\n\nIt has the keys of a backend, except `model`, and these:\n\n" + _table(
        GatewayConfig, only=frozenset({"any_model", "retries", "limits", "prices"})
    )
    return f"# Registry\n\n{generated}\n{_INTRO}\n\n{_EXAMPLE}\n\n" + "\n\n".join([*tables, gateway]) + "\n"


def _table(entry: type[BaseModel], only: frozenset[str] = frozenset()) -> str:
    rows = [
        f"| `{name}` | {_kind(field)} | {_default(field)} | {field.description} |"
        for name, field in entry.model_fields.items()
        if not only or name in only
    ]
    return "| key | what it takes | default | meaning |\n|---|---|---|---|\n" + "\n".join(rows)


def _kind(field: FieldInfo) -> str:
    kind = field.annotation
    if "parse_decimal" in str((kind, field.metadata)):
        return "number"
    arguments = [argument for argument in get_args(kind) if argument is not type(None)]
    if all(isinstance(argument, str) for argument in arguments) and arguments:
        return " or ".join(f"`{argument}`" for argument in arguments)
    text = str(kind)
    if (isinstance(kind, type) and issubclass(kind, BaseModel)) or "Config | None" in text:
        return "map"
    for word, said in (
        ("list[", "list"),
        ("dict[", "map"),
        ("BeforeValidator", "duration"),
        ("bool", "true or false"),
        ("int", "whole number"),
        ("float", "number"),
        ("str", "text"),
    ):
        if word in text or get_origin(kind) is word:
            return said
    return "map"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in ("", None, [], {}) or field.default is PydanticUndefined:
        return "unset"
    return f"`{str(field.default).lower() if isinstance(field.default, bool) else field.default}`"
