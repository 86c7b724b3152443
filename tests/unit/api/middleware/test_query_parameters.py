"""Unknown query parameters are refused in the profile strict, and named in a header in the
profile relaxed.
"""

from collections.abc import AsyncGenerator

import pytest

from batchwright.api.middleware.query_parameters import WARNING_HEADER
from batchwright.contracts.terms import Profile
from tests.fakes.api import ApiFixture, error_of, open_api

LISTS = ["/v1/files", "/v1/batches", "/v1/models", "/v1/x/limits", "/v1/stats"]
OPERATORS = ["/admin/dlq", "/admin/quotas", "/admin/rates", "/admin/models", "/admin/budget-groups"]


@pytest.fixture
async def relaxed() -> AsyncGenerator[ApiFixture]:
    async with open_api() as api:
        yield api


@pytest.fixture
async def strict() -> AsyncGenerator[ApiFixture]:
    async with open_api(profile=Profile.STRICT) as api:
        yield api


@pytest.mark.parametrize("path", [*LISTS, *OPERATORS])
async def test_strict_refuses_an_unknown_parameter_by_name(strict: ApiFixture, path: str) -> None:
    answer = await strict.http.get(f"{path}?stauts=failed")
    error = error_of(answer)
    assert (answer.status_code, error.param, error.code) == (400, "stauts", "unknown_parameter")
    assert "stauts" in error.message


@pytest.mark.parametrize("path", [*LISTS, *OPERATORS])
async def test_relaxed_names_the_ignored_parameters_in_a_header(relaxed: ApiFixture, path: str) -> None:
    plain = await relaxed.http.get(path)
    answer = await relaxed.http.get(f"{path}?stauts=failed&Limit=2")
    assert (answer.status_code, WARNING_HEADER in plain.headers) == (plain.status_code, False)
    assert answer.headers[WARNING_HEADER] == "Ignored query parameters: stauts, Limit"


@pytest.mark.parametrize(
    "query",
    [
        "",
        "limit=2",
        "status=failed&model=m&created_after=1&created_before=2&metadata[run]=7",
        "metadata%5Brun%5D=7",
        "api-version=2024-10-21",  # clients of Azure OpenAI
    ],
)
async def test_known_parameters_pass_in_both_profiles(
    strict: ApiFixture, relaxed: ApiFixture, query: str
) -> None:
    for api in (strict, relaxed):
        answer = await api.http.get(f"/v1/batches?{query}")
        assert (answer.status_code, WARNING_HEADER in answer.headers) == (200, False)


async def test_head_is_checked_as_get_is(strict: ApiFixture, relaxed: ApiFixture) -> None:
    assert (await strict.http.head("/v1/batches?x=1")).status_code == 400
    assert (await relaxed.http.head("/v1/batches?x=1")).headers[WARNING_HEADER].endswith(": x")


async def test_an_error_carries_the_warning_too(relaxed: ApiFixture) -> None:
    answer = await relaxed.http.get("/v1/batches?limit=0&x=1")
    assert (answer.status_code, answer.headers[WARNING_HEADER]) == (400, "Ignored query parameters: x")


async def test_the_header_is_short_ascii_whatever_the_names_are(relaxed: ApiFixture) -> None:
    names = ["%0d%0aSet-Cookie:", "%00", "%F0%9F%92%A9", "x" * 5000, *(f"n{n}" for n in range(50))]
    answer = await relaxed.http.get("/v1/batches?" + "&".join(f"{name}=1" for name in names))
    warning = answer.headers[WARNING_HEADER]
    assert warning.startswith("Ignored query parameters: %0D%0ASet-Cookie%3A, %00, %F0%9F%92%A9, xxx")
    assert (warning.count(","), len(warning) < 500, "set-cookie" in answer.headers) == (9, True, False)


async def test_health_checks_and_unknown_paths_are_not_checked(strict: ApiFixture) -> None:
    assert (await strict.http.get("/healthz?x=1")).status_code == 200
    assert (await strict.http.get("/v1/nothing?x=1")).status_code == 404
