"""Pages of long lists. All endpoints of the API that list objects return such pages."""

from collections.abc import Sequence
from typing import Generic, Literal, Protocol, TypeVar

from pydantic import BaseModel

Item = TypeVar("Item")


class ListPage(BaseModel, Generic[Item]):
    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool


class _Identified(Protocol):
    id: str


_Object = TypeVar("_Object", bound=_Identified)


def page_of(
    kind: "type[ListPage[_Object]]", data: Sequence[_Object], *, more: bool, last_id: str | None = None
) -> "ListPage[_Object]":
    """Return one page of a list of objects.

    Args:
        kind: class of the page, such as `FilePage`.
        data: the objects on this page.
        more: True if another page follows.
        last_id: id after which the next page begins. If `last_id` is None, the next page begins after the
            last object in `data`. If a search was stopped by its time limit, `last_id` must be the id of the
            last object that was examined, even if this object is not in `data`.
    """
    first, last = (data[0].id, data[-1].id) if data else (None, None)
    return kind(data=list(data), first_id=first, last_id=last_id or last, has_more=more)
