"""Changes constants of modules when they are imported.

Python runs this file at its start if PYTHONPATH contains its directory. The environment variable
TEST_CONSTANTS contains the new values as JSON: `{"module:attribute": value}`.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from operator import attrgetter
from types import ModuleType


class _ChangingLoader(Loader):
    """An import loader that loads a module with `loader`, and sets its attributes before others read them."""

    def __init__(self, loader: Loader, values: Mapping[str, object]) -> None:
        self._loader, self._values = loader, values

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        for path, value in self._values.items():
            owner, _, name = path.rpartition(".")
            found = attrgetter(owner)(module) if owner else module
            present = getattr(found, name)  # fails if the constant has another name now
            if isinstance(present, timedelta) and isinstance(value, float | int):
                setattr(found, name, timedelta(seconds=value))
            else:
                setattr(found, name, value)


class _ChangingFinder(MetaPathFinder):
    def __init__(self, values: Mapping[str, Mapping[str, object]]) -> None:
        self._values = values

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._values:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _ChangingLoader(spec.loader, self._values[fullname])
        return spec


def _install() -> None:
    by_module: dict[str, dict[str, object]] = {}
    for place, value in json.loads(os.environ.get("TEST_CONSTANTS", "{}")).items():
        module, _, attribute = place.partition(":")
        by_module.setdefault(module, {})[attribute] = value
    if by_module:
        sys.meta_path.insert(0, _ChangingFinder(by_module))


_install()
