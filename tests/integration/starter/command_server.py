"""Server that forks a process for each `batchwright` command, so that libraries are imported only once.

The imports take a second, and the tests run a hundred commands. Each command still runs in its own process,
with its own arguments, environment, output and exit code. The server ends when its standard input closes.
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Never, TypedDict


class Command(TypedDict):
    """Request to run a command. The file descriptors for its output and its errors are sent along.

    The response is the command's exit code.
    """

    arguments: list[str]
    environment: dict[str, str]
    folder: str


def serve(path: str) -> None:
    for module in Path(import_module("batchwright.starter.commands").__path__[0]).glob("[a-z]*/[a-z]*.py"):
        import_module(f"batchwright.starter.commands.{module.parent.name}.{module.stem}")
    main: Callable[[], Never] = import_module("batchwright.starter.__main__").main
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ended children need no wait
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        os.write(1, b"\n")
        while sys.stdin not in select.select([server, sys.stdin], [], [])[0]:
            connection, _ = server.accept()
            if os.fork() == 0:
                server.close()
                _answer(connection, main)
            connection.close()


def _answer(connection: socket.socket, main: Callable[[], Never]) -> None:
    """Handle one connection in a forked child of the server: run the command, and send its exit code.

    The command runs in a further child.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    text, outputs, _, _ = socket.recv_fds(connection, 1 << 20, 2)
    command: Command = json.loads(text)
    process = os.fork()
    if process == 0:
        os.environ.clear()
        os.environ.update(command["environment"])
        os.chdir(command["folder"])
        sys.argv[1:] = command["arguments"]
        for own, given in enumerate((os.open(os.devnull, os.O_RDONLY), *outputs)):
            os.dup2(given, own)
        connection.close()
        main()
    connection.sendall(str(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])).encode())
    os._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
