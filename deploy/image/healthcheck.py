"""Exit 0 when an API or a worker answers in this container; each argument is PORT or PORT/PATH.

Without arguments: whichever of the API's and a worker's ports the environment names, at /healthz. A container
runs one of the two, so one answer is enough. Standard library only: it runs every few seconds.
"""

import http.client
import os
import sys

_SECONDS = 4.0
_PORTS = ("BATCHWRIGHT_API_PORT", "BATCHWRIGHT_METRICS_PORT")


def answers(target: str) -> bool:
    """Return True if GET of `8000/readyz` (or `8000`, at /healthz) returns 200."""
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
