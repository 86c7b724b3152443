"""Server that forks Python programs, so that libraries are imported only once.

The imports take a second, and the tests run hundreds of programs. Each program still runs in its own
process, with its own process group, arguments, environment, output and exit code. The server ends when no
process has the other end of its standard input open.
"""

import fcntl
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TypedDict

ANSWER = struct.Struct("!i")
LOCK = "lock"  # file beside the socket: its holder knows whether the server will end


class Program(TypedDict):
    """A request to run `python -m MODULE ARGUMENTS`. Two file descriptors are sent along: stdout and stderr.

    The responses are the process id and, when the process has ended, its exit code, both as `ANSWER`.
    """

    module: str
    arguments: list[str]
    environment: dict[str, str]
    folder: str


def serve(path: str, modules: Sequence[str]) -> None:
    """Import `modules`, and run programs for the clients that connect to the socket `path`."""
    for module in modules:
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children need no wait
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.write(1, b"\n")
        while True:
            ready = select.select([server, sys.stdin], [], [])[0]
            if server in ready:
                connection, _ = server.accept()
                if os.fork() == 0:
                    server.close()
                    _answer(connection)
                connection.close()
            elif _is_unused(Path(path).with_name(LOCK)):
                return


def _is_unused(lock: Path) -> bool:
    """Return True if no process uses this server. The lock is then kept, so that none begins to use it."""
    try:
        descriptor = os.open(lock, os.O_RDWR)
    except FileNotFoundError:  # the test run has ended
        return True
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if sys.stdin in select.select([sys.stdin], [], [], 0)[0]:
        return True
    os.close(descriptor)
    return False


def _answer(connection: socket.socket) -> None:
    """Handle one connection in a forked child of the server. The program runs in a further child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, outputs, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    program: Program = json.loads(text)
    process = os.fork()
    if process == 0:
        connection.close()
        _run(program, outputs)
    os.closerange(0, 3)
    for output in outputs:
        os.close(output)  # only the program holds its output open
    connection.sendall(ANSWER.pack(process))
    has_ended = threading.Event()
    threading.Thread(target=_kill_without_client, args=(connection, process, has_ended), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    has_ended.set()
    connection.sendall(ANSWER.pack(code))
    os._exit(0)


def _kill_without_client(connection: socket.socket, process: int, has_ended: threading.Event) -> None:
    """Kill the program when its client ends first, whose guard does not find it (`tests.guard`).

    The environment that the guard reads is that of the server.
    """
    with suppress(ConnectionResetError):  # the client has ended before it read an answer
        connection.recv(1)  # the client sends nothing
    if not has_ended.is_set():
        os.kill(process, signal.SIGKILL)


def _run(program: Program, outputs: Sequence[int]) -> None:
    """Run the program in this process, and end the process."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    for own, given in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
        os.dup2(given, own)
        os.close(given)
    sys.argv[1:] = program["arguments"]
    runpy.run_module(program["module"], run_name="__main__", alter_sys=True)
    sys.exit()


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2:])
