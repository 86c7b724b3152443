"""`batchwright admin hold`, `release` and `holds`: stop and restart the sending of lines of a tenant or
model.
"""

from typing import Annotated

import typer

from batchwright.contracts.api_objects.operator import HoldList
from batchwright.starter.client_errors import ClientError
from batchwright.starter.operator_client import OperatorClient, operator_client
from batchwright.starter.options import Json, Tenant, Url
from batchwright.starter.output import (
    column_table,
    escaped,
    local_timestamp,
    print_json,
    stderr,
    stdout,
    stop,
)

_Of = Annotated[str | None, typer.Option("--of", metavar="TENANT", help="This tenant.", show_default=False)]
_Model = Annotated[str | None, typer.Option("--model", help="This model.", show_default=False)]


def hold(
    of: _Of = None, model: _Model = None, json: Json = False, url: Url = None, tenant: Tenant = None
) -> None:
    """Stop sending lines of a tenant or a model until you release it.

    Requests in flight complete. Completion windows keep running. If no backend serves the model now, the
    command nevertheless holds the model, and prints a warning.
    """
    target = _target(of, model)
    with operator_client(url, tenant) as client:
        page = client.hold(target)
        if model is not None and not _is_known(client, model):
            warning = f"No backend serves {model} now. Check the name: `batchwright models` lists all models."
            stderr().print(warning, markup=False)
        _print(page, json)


def release(
    of: _Of = None, model: _Model = None, json: Json = False, url: Url = None, tenant: Tenant = None
) -> None:
    """Release a tenant or model, so that its lines are sent again."""
    target = _target(of, model)
    with operator_client(url, tenant) as client:
        held = client.holds().data
        _print(client.release(target), json)
    if not any((each.tenant, each.model) == (of, model) for each in held):
        name = f"The tenant {of}" if model is None else f"The model {model}"
        stderr().print(f"{name} was not held, so there is nothing to release.", markup=False)


def holds(json: Json = False, url: Url = None, tenant: Tenant = None) -> None:
    """List the held tenants and models. Their lines are not sent until you release them."""
    with operator_client(url, tenant) as client:
        _print(client.holds(), json)


def _target(of: str | None, model: str | None) -> dict[str, str]:
    """Return the tenant or model to hold or release, as `{"tenant": NAME}` or `{"model": NAME}`.

    If both names are given, or neither, the command ends with an error.

    Args:
        of: name of the tenant.
    """
    if (of is None) == (model is None):
        stop("Name either a tenant with --of or a model with --model.")
    return {"tenant": of} if of is not None else {"model": model or ""}


def _is_known(client: OperatorClient, model: str) -> bool:
    try:
        client.model(model)
    except ClientError as error:
        if error.code != "model_not_found":
            raise
        return False
    return True


def _print(page: HoldList, json: bool) -> None:
    if json:
        return print_json(page)
    if not page.data:
        return stderr().print("No tenant and no model is held.")
    table = column_table("tenant", "model", "held since")
    for each in page.data:
        table.add_row(escaped(each.tenant or ""), escaped(each.model or ""), local_timestamp(each.held_at))
    stdout().print(table)
