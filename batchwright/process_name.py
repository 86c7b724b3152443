"""Name of this process, with which heartbeats, Temporal, traces and shared tables identify it."""

import os
import socket


def process_name() -> str:
    """Return the host name and the process id, such as `worker-7f9c:12`. A forked process has its own
    name.
    """
    return f"{socket.gethostname()}:{os.getpid()}"
