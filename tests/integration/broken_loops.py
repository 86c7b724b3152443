"""Starts a real process whose background loops fail at their first run.

Run `python -m tests.integration.broken_loops PAUSE STEADY PROCESS LOOP...`. `LOOP` is `module:Class.method`
or `module:function`, `PROCESS` is `worker` or `api`.
"""

import runpy
import sys
from collections.abc import Callable, Coroutine
from functools import wraps
from importlib import import_module
from typing import Any

from batchwright.background import BackgroundTasks

_Loop = Callable[..., Coroutine[Any, Any, None]]
_broken = set[str]()


def break_once(place: str) -> None:
    module, _, path = place.partition(":")
    owner: object = import_module(module)
    *holders, name = path.split(".")
    for holder in holders:
        owner = getattr(owner, holder)
    really: _Loop = getattr(owner, name)

    @wraps(really)
    async def run(*args: object, **kwargs: object) -> None:
        if place not in _broken:
            _broken.add(place)
            raise ValueError("injected")
        await really(*args, **kwargs)

    setattr(owner, name, run)


def main(pause: str, steady: str, process: str, *loops: str) -> None:
    BackgroundTasks.__init__.__kwdefaults__ = {"first_pause": float(pause), "steady_seconds": float(steady)}
    for loop in loops:
        break_once(loop)
    sys.argv = [process]
    runpy.run_module(f"batchwright.{process}", run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
