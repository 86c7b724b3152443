"""Commands whose modules are imported only when they are called, so that `batchwright --help` is fast."""

from collections.abc import Mapping
from importlib import import_module

import typer
from typer._click import Command, Context
from typer.core import TyperCommand
from typer.main import get_command

from batchwright.starter.help_names import name_values


class LazyCommand(TyperCommand):
    """A command whose module is imported only when the command is called, so that `--help` is fast.

    Args:
        target: the function, as `module:name` in the package batchwright.starter.commands.
        summary: description in the list of commands.
        context_settings: settings of click for parsing arguments, such as `ignore_unknown_options`.
    """

    def __init__(
        self,
        name: str,
        target: str,
        summary: str,
        context_settings: Mapping[str, bool | list[str]] | None = None,
    ) -> None:
        super().__init__(name, help=summary, rich_markup_mode=None)
        self._target = target
        self._settings = dict(context_settings or {})

    def command(self) -> Command:
        """Import the function of this command, and return it as a click command."""
        module, _, name = self._target.partition(":")
        target: object = getattr(import_module(f"batchwright.starter.commands.{module}"), name)
        if isinstance(target, typer.Typer):
            return name_values(get_command(target))
        if not callable(target):
            raise TypeError(f"{self._target} is not a command")
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        alone.command(self.name, context_settings=self._settings)(target)
        return name_values(get_command(alone))

    def make_context(
        self, info_name: str | None, args: list[str], parent: Context | None = None, **extra: object
    ) -> Context:
        return self.command().make_context(info_name, args, parent, **extra)
