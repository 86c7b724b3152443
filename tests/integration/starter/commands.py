"""Runs `batchwright` commands as processes, and captures their output."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.integration.starter.command_server import Command

_SERVER = Path(__file__).with_name("command_server.py")
_starting = threading.Lock()  # two commands at once must not start two servers


class Ended(NamedTuple):
    code: int
    stdout: list[str]  # lines of stdout
    stderr: str


async def batchwright(*arguments: str, **settings: str) -> Ended:
    environment = {
        **os.environ,
        "COLUMNS": "80",
        **{f"BATCHWRIGHT_{name.upper()}": value for name, value in settings.items()},
    }
    command = Command(arguments=list(arguments), environment=environment, folder=os.getcwd())
    return await asyncio.to_thread(_run, command)


def _run(command: Command) -> Ended:
    with (
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as errors,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        with _starting:
            server = _server()
        connection.connect(str(server.socket))
        fds = [output.fileno(), errors.fileno()]
        socket.send_fds(connection, [json.dumps(command).encode()], fds)
        code = int(connection.recv(16))
        output.seek(0)
        errors.seek(0)
        return Ended(code, output.read().decode().splitlines(), errors.read().decode())


class _Server:
    """The command server of this test process. It ends with the process, which closes its standard input."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="batchwright-commands-")
        self.socket = Path(self._folder.name) / "socket"
        command = [sys.executable, str(_SERVER), str(self.socket)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"\n", "the server of commands did not start"


_server = cache(_Server)
