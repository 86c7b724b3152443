"""Makes help texts of commands and errors about wrong values readable, for example `--url URL`."""

from typer._click import Command, Context
from typer.core import TyperArgument, TyperGroup, TyperOption

_MAX_CHOICES_CHARACTERS = 24
_DATE_PARTS = {"'%Y": "'YYYY", "-%m": "-MM", "-%d": "-DD", "T%H": "Thh", ":%M": ":mm", ":%S": ":ss"}
_NAMES = {"int": "N", "float": "N", "path": "PATH", "datetime": "TIME"}


def name_values(command: Command) -> Command:
    """Replace the Python types in the help of `command` and its subcommands by readable names.

    Return the same `command`.
    """
    if isinstance(command, TyperGroup):
        for each in command.commands.values():
            name_values(each)
    context = Context(command)
    for param in command.params:
        if isinstance(param, TyperOption):
            _name_option(param, context)
        elif isinstance(param, TyperArgument):
            _name_argument(param)
    return command


def readable_error(message: str) -> str:
    """Return Typer's message about a wrong value in a form for users.

    Python's date formats, such as `%Y-%m-%d`, become readable ones, such as `YYYY-MM-DD`. The prefix
    `Value error, ` is removed.
    """
    for code, name in _DATE_PARTS.items():
        message = message.replace(code, name)
    return message.removeprefix("Value error, ")


def _name_option(option: TyperOption, context: Context) -> None:
    if option.metavar is not None or option.is_flag:
        return
    kind = (option.display_type(context) or "").strip("<>").removeprefix("list[").removesuffix("]")
    own = max(option.opts, key=len).rpartition("-")[2].upper()
    if "%" in kind:
        option.metavar = _NAMES["datetime"]
    elif "|" not in kind:
        option.metavar = _NAMES.get(kind.removesuffix(" range"), own)
    elif len(kind) <= _MAX_CHOICES_CHARACTERS:
        option.metavar = kind
    else:
        option.metavar = own
        option.help = f"{option.help or ''} One of: {kind.replace('|', ', ')}.".strip()


def _name_argument(argument: TyperArgument) -> None:
    name = argument.display_name_raw + ("" if argument.nargs == 1 else "...")
    usage = name if argument.required else f"[{name}]"

    def no_type(ctx: Context) -> None:
        return None

    def usage_name() -> str:
        return usage

    # Typer has no setting for these two: its help shows the type, and braces in the line with the usage.
    for method, replacement in {"display_type_rich": no_type, "_usage_display_name": usage_name}.items():
        setattr(argument, method, replacement)
