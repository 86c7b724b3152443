"""Start of `python -m batchwright.api`."""

from batchwright.process import collect_rarely

if __name__ == "__main__":
    collect_rarely()
    from batchwright.api.main import run

    run()
