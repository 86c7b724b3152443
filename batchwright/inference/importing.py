"""Objects that settings name as `module:attribute`."""

import importlib


class NotImportable(Exception):
    """One sentence: the reference, and what is wrong with it."""


def imported(reference: str) -> object:
    """What `module:attribute` names; a class is called without arguments.

    Raises:
        NotImportable: it has another form, or is not there, or fails.
    """
    module, colon, attribute = reference.partition(":")
    if not (module and colon and attribute):
        raise NotImportable(f"{reference!r} is not of the form module:attribute")
    try:
        found: object = getattr(importlib.import_module(module), attribute)
        return found() if isinstance(found, type) else found
    except Exception as error:  # whatever a module of the user's does when it is imported
        raise NotImportable(f"{reference!r} cannot be imported: {type(error).__name__}: {error}") from error
