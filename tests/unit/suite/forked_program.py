"""Program of the tests of `ForkedProcess`. It prints what it has, and exits with the code that it is given.

Without a code it waits to be killed.
"""

import json
import os
import signal
import sys

if __name__ == "__main__":
    print(json.dumps({"pid": os.getpid(), "group": os.getpgrp(), "colour": os.environ.get("COLOUR")}))
    print("ready", file=sys.stderr, flush=True)
    if len(sys.argv) == 1:
        signal.pause()
    sys.exit(int(sys.argv[1]))
