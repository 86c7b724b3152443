"""A program for the tests of `ForkedProcess`. It prints its process id, its process group and a variable, and
exits with the code in its argument.

Without a code, it waits until it is killed.
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
