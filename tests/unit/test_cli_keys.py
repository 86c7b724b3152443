"""`batchwright keys`: what it says where there are none."""

import pytest
from typer.testing import CliRunner

from starter.__main__ import app


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "There is no key; `batchwright keys create TENANT` makes one.\n"),
        (["acme"], "Tenant 'acme' has no key; `batchwright keys create acme` makes one.\n"),
    ],
    ids=["of all", "of a tenant"],
)
def test_without_keys_the_list_says_how_to_make_one(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(_: object) -> tuple[list[object], dict[str, int]]:
        return [], {}

    monkeypatch.setattr("starter.commands.keys.asked", none)
    ended = CliRunner().invoke(app, ["keys", "list", *arguments])
    assert (ended.exit_code, ended.stdout, ended.stderr) == (0, "", said)
