"""Every regular expression for text of users or backends needs only linear time and memory."""

import importlib
import pkgutil
import re
import time
import tracemalloc
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import cast

import pytest
from msgspec import Raw

import batchwright
from batchwright.api.routes.anthropic.request_stream import RequestSplitter
from batchwright.rules.backends.body_rewriting import with_default_model, with_model, with_string
from batchwright.rules.backends.microbatch import EmbeddingsAdapter
from batchwright.rules.ids import safe_name
from batchwright.rules.input.body_rules import count_inputs
from batchwright.rules.json_text import object_members, replace_lone_surrogates, storable, storable_json
from batchwright.rules.results.output_lines import json_value

Pattern = re.Pattern[str] | re.Pattern[bytes]
MEBIBYTE = 1024 * 1024
# Their texts are the operator's, the release's own, or a few lines that a server says of itself.
OF_OPERATORS = {
    "batchwright.contracts.model_registry.backend_config",
    "batchwright.contracts.model_registry.config_base",
    "batchwright.contracts.model_registry.backend_job_config",
    "batchwright.database.sql",
    "batchwright.rules.key_references",
    "batchwright.rules.stored_objects.object_keys",
    "batchwright.storage.base",
    "batchwright.telemetry.exposition",
    "batchwright.telemetry.prometheus.process_metrics",
    "batchwright.temporal.errors",
    "batchwright.api.routes.health",
}
# They are only matched at a given place or against a whole text; the readers of bodies below run them.
ONLY_MATCHED = {
    "batchwright.api.routes.anthropic.request_stream._BEGIN.0",
    "batchwright.api.routes.anthropic.request_stream._TO_BRACKET.0",
    "batchwright.api.routes.anthropic.request_stream._TO_STRING_END.0",
    "batchwright.rules.input.body_rules._ELEMENT.0",
    "batchwright.rules.json_text._MEMBER_NAME.0",
    "batchwright.rules.json_text._TO_BRACKET.0",
    "batchwright.telemetry.redaction._SECRET_NAME.0",
}
# Repeated, with one of TAILS behind them, these make a backtracking pattern take the square of their number.
ATOMS = (
    *'a10-_./:=@% \n\\"[{],é\x00',
    *('\\"', "1,", "[1],", '"a",', "a-", "a.", "a b", "a:", "a=", "://a:", "secret", "secret-", "api_key "),
    *("authorization ", "bearer ", "basic  ", "eyJ-", "eyJabcdefgh.", "sk-", "AKIA"),
    *("\\u0000", "\\ud800"),
)
TAILS = ("", "!", "\n", '"', "\\")


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(batchwright.__path__, "batchwright."):
        if not found.name.endswith("__main__"):
            yield importlib.import_module(found.name)


def patterns() -> dict[str, Pattern]:
    """Return the regular expressions at the top level of all modules, by module and name.

    Expressions in lists are included.
    """
    found: dict[str, Pattern] = {}
    for module in modules():
        for name, value in vars(module).items():
            several = cast("list[object]", value) if isinstance(value, list) else [value]
            for number, one in enumerate(several):
                if isinstance(one, re.Pattern):
                    found[f"{module.__name__}.{name}.{number}"] = one
    return found


PATTERNS = patterns()
OF_USERS = sorted(
    name for name in PATTERNS if name.rsplit(".", 2)[0] not in OF_OPERATORS and name not in ONLY_MATCHED
)


def seconds_of(pattern: Pattern, text: str) -> float:
    """Return the time of finding all matches in the text and of one full match, in seconds."""
    if isinstance(pattern.pattern, str):
        search = cast("re.Pattern[str]", pattern)
        return seconds_to_run(lambda: (sum(1 for _ in search.finditer(text)), search.fullmatch(text)))
    data, look = text.encode("utf-8", "surrogatepass"), cast("re.Pattern[bytes]", pattern)
    return seconds_to_run(lambda: (sum(1 for _ in look.finditer(data)), look.fullmatch(data)))


def seconds_to_run(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def test_modules_of_operators_have_patterns() -> None:
    assert {name.rsplit(".", 2)[0] for name in PATTERNS} >= OF_OPERATORS


@pytest.mark.parametrize("name", OF_USERS)
def test_the_time_of_a_pattern_is_proportional_to_its_text(name: str) -> None:
    pattern = PATTERNS[name]
    for atom in ATOMS:
        for tail in TAILS:
            short, long = (atom * (size // len(atom)) + tail for size in (512, 8_192))
            took = max(min(seconds_of(pattern, short) for _ in range(3)), 0.0002)
            # 16 times as much: by the square it takes 256 times as long. The shortest of several
            # times counts, because a machine that is shared may add any time to one.
            assert any(seconds_of(pattern, long) < 80 * took for _ in range(10)), (atom, tail)


SHAPES: dict[str, tuple[bytes, bytes, bytes]] = {  # what is repeated, between what
    "plain": (b'{"messages":"', b"a", b'","model":"m"}'),
    "escapes": (b'{"messages":"', rb"\n", b'","model":"m"}'),
    "quotes": (b'{"messages":"', rb"\"", b'","model":"m"}'),
    "surrogates": (b'{"messages":"', rb"\ud800", b'","model":"m"}'),
    "name": (b'{"', b"a", b'":1,"model":"m"}'),
    "tokens": (b'{"input":[', b"1,", b'1],"model":"m"}'),
    "texts": (b'{"input":[', b'"a",', b'"a"],"model":"m"}'),
    "arrays": (b'{"input":[', b"[],", b'[]],"model":"m"}'),
    "object_members": (b"{", b'"a":1,', b'"model":"m"}'),
    "lines": (b'{"a":[', b"\n1,", b'1],"model":"m"}'),
    "no end": (b'{"messages":"', rb"\"", b""),
}


def body_of(shape: str, size: int) -> bytes:
    begin, repeated, end = SHAPES[shape]
    return begin + repeated * (size // len(repeated)) + end


def drained(body: bytes) -> None:
    for _ in object_members(body):
        pass


def inputs(body: bytes) -> None:
    value = body[body.index(b":") + 1 : -len(b',"model":"m"}')]
    if value.startswith(b"["):
        count_inputs(Raw(value), MEBIBYTE)


def divided(body: bytes) -> None:
    """Split a message batch with one request, `body`, that arrives in pieces."""
    splitter, whole = RequestSplitter(20 * MEBIBYTE), b'{"requests":[' + body + b"]}"
    for start in range(0, len(whole), 65_536):
        for _ in splitter.feed(whole[start : start + 65_536]):
            pass


BODY_READERS: dict[str, Callable[[bytes], object]] = {
    "with_model": lambda body: with_model(body, "other"),
    "with_default_model": lambda body: with_default_model(body, "other"),
    "with_string": lambda body: with_string(body, "callback", "url"),
    "object_members": drained,
    "request_stream": divided,
    "embeddings": EmbeddingsAdapter().part,
    "count_inputs": inputs,
    "json_value": json_value,
    "replace_lone_surrogates": replace_lone_surrogates,
    "storable": lambda body: storable(body.decode()),
    "storable_json": lambda body: storable_json(body.decode()),
    "safe_name": lambda body: safe_name(body.decode()),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reader", BODY_READERS)
def test_a_body_is_read_in_time_in_proportion_to_its_length(reader: str, shape: str) -> None:
    read = BODY_READERS[reader]
    short, long = body_of(shape, MEBIBYTE // 16), body_of(shape, MEBIBYTE)
    took = max(seconds_to_run(lambda: read(short)), 0.001)
    assert any(seconds_to_run(lambda: read(long)) < 80 * took for _ in range(10))  # the shortest time counts


@pytest.mark.parametrize("shape", ["plain", "escapes", "quotes", "name", "tokens"])
@pytest.mark.parametrize("reader", BODY_READERS)
def test_a_body_of_ten_mebibytes_is_read_in_little_memory(reader: str, shape: str) -> None:
    """The test allows memory for a few copies of the body. A pattern that backtracks would need a hundred
    bytes for each byte.
    """
    body = body_of(shape, 10 * MEBIBYTE)
    tracemalloc.start()
    try:
        BODY_READERS[reader](body)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12 * len(body), f"{peak / len(body):.0f} bytes for each byte"
