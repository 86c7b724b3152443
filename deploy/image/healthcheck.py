"""Exits with 0 if the API or the worker in this container answers, otherwise with 1.

Each argument is PORT or PORT/PATH. Without arguments, the ports of API and worker are read from the
environment, and the path is /healthz. A container runs either the API or a worker, so one answer is enough.
The script uses only the standard library, to start quickly: it runs every few seconds.
"""

import http.client
import os
import sys

_SECONDS = 4.0
_PORTS = ("BATCHWRIGHT_API_PORT", "BATCHWRIGHT_METRICS_PORT")


def answers(target: str) -> bool:
    """Return True if a GET request to `target`, such as `8000/readyz`, gets a response with the status 200.

    If `target` is only a port, the path is /healthz.
    """
    port, _, path = target.partition("/")
    connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=_SECONDS)
    try:
        connection.request("GET", f"/{path or 'healthz'}")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def main(targets: list[str]) -> int:
    chosen = targets or [os.environ[name] for name in _PORTS if name in os.environ]
    return 0 if any(answers(target) for target in chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
