"""How a process ends: without the interpreter taking itself apart.

The Temporal SDK's threads may still run then, and now and then abort the process
(SIGABRT) whose work is done; and taking apart every schema of pydantic's takes up to a second.
"""

import logging
import os
import sys
from collections.abc import Callable
from typing import Never, TextIO

_COULD_NOT_WRITE = 120  # as the interpreter exits then


def run_and_leave(main: Callable[[], object]) -> Never:
    """Ends the process as `sys.exit(main())` would, except that nothing registered with `atexit` runs."""
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    leave(_as_number(code))


def leave(code: int) -> Never:
    """Ends the process here and now, with what was logged and printed written out."""
    logging.shutdown()
    written = [_is_written(stream) for stream in (sys.stdout, sys.stderr)]
    os._exit(code if all(written) else code or _COULD_NOT_WRITE)


def _as_number(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _is_written(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:  # who read it has what it wanted
        return False
    except OSError as error:
        os.write(2, f"{stream.name}: {error}\n".encode())
        return False
    return True
