"""Functions for the start and the end of a process.

A process ends without finalizing the Python interpreter, for two reasons. Finalization can take up to a
second. If threads of the Temporal SDK still run, finalization can also abort the process (SIGABRT) although
the work is done.
"""

import gc
import logging
import os
import sys
from collections.abc import Callable
from typing import Never, TextIO

_EXIT_WRITE_FAILED = 120  # the exit code that the interpreter itself uses in this case


def collect_rarely() -> None:
    """Make Python's cyclic garbage collector run less often. Call this before the imports.

    By default, Python searches for cycles after every 700 new objects. Imports create hundreds of thousands
    of objects that live as long as the process. A request creates hundreds of short-lived objects, but few
    cycles.
    """
    gc.set_threshold(50_000, 20, 100)


def run_and_exit(main: Callable[[], object]) -> Never:
    """Call `main`, then exit the process without running `atexit` functions.

    - If `main` returns, its result is the exit code.
    - If `main` raises SystemExit, the `code` of the exception is the exit code.
    - If `main` raises another exception, the traceback is printed, and the exit code is 1.

    As with `sys.exit`, None means 0. A value that is not an integer is printed, and the exit code is 1.
    """
    try:
        code = main()
    except SystemExit as end:
        code = end.code
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = 1
    exit_now(_exit_code(code))


def exit_now(code: int) -> Never:
    """Write buffered logs and output, and end the process at once with the exit code `code`.

    If `code` is 0 but the output cannot be written, the exit code is 120.
    """
    logging.shutdown()
    flushed = [_flush(stream) for stream in (sys.stdout, sys.stderr)]
    os._exit(code if all(flushed) else code or _EXIT_WRITE_FAILED)


def _exit_code(code: object) -> int:
    if code is None or isinstance(code, int):
        return code or 0
    print(code, file=sys.stderr)
    return 1


def _flush(stream: TextIO) -> bool:
    try:
        stream.flush()
    except BrokenPipeError:  # the reader closed the pipe because it has what it needs
        return False
    except OSError as error:
        os.write(2, f"{stream.name}: {error}\n".encode())
        return False
    return True
