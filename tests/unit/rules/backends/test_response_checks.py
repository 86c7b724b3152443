"""Each embedding in a response must belong to one input. Otherwise a line would get the vector of another
line.
"""

import pytest

from batchwright.rules.backends.response_checks import find_embeddings_problem

TWO_INPUTS = b'{"model":"m","input":["a","b"]}'


def response(*indexes: int | None) -> bytes:
    items = (b"{}" if index is None else b'{"index":%d}' % index for index in indexes)
    return b'{"data":[%b]}' % b",".join(items)


@pytest.mark.parametrize("indexes", [(0, 1), (1, 0), (None, None)])
def test_one_embedding_for_each_input_is_no_problem_in_any_order(indexes: tuple[int | None, ...]) -> None:
    assert find_embeddings_problem(TWO_INPUTS, response(*indexes)) == ""


@pytest.mark.parametrize("indexes", [(0, 0), (1, 2), (-1, 0), (0, 7), (None, 1)])
def test_embeddings_with_repeated_or_unknown_indexes_are_refused(indexes: tuple[int | None, ...]) -> None:
    problem = find_embeddings_problem(TWO_INPUTS, response(*indexes))
    assert problem == "The indexes of the backend's embeddings are not 0 to 1, each once."


def test_the_embedding_of_a_single_text_has_the_index_0() -> None:
    request = b'{"model":"m","input":"a"}'
    assert find_embeddings_problem(request, response(0)) == ""
    assert find_embeddings_problem(request, response(1)) != ""


@pytest.mark.parametrize("body", [b"{}", b"[]", b"no JSON", b'{"data":{}}', b'{"data":[{"index":"0"}]}'])
def test_a_response_without_a_list_of_embeddings_is_refused(body: bytes) -> None:
    problem = find_embeddings_problem(TWO_INPUTS, body)
    assert problem == "The backend's response has no list of embeddings."
