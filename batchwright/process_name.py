"""The name by which heartbeats, Temporal, traces and shared tables identify this process."""

import os
import socket


def process_name() -> str:
    """Return the host name and the process id, such as `worker-7f9c:12`. The name of a forked process differs
    from its parent's name.
    """
    return f"{socket.gethostname()}:{os.getpid()}"
