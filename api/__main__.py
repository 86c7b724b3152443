"""Entry point of `python -m batchwright.api`: runs the API process."""

from batchwright.process_exit import collect_rarely

if __name__ == "__main__":
    collect_rarely()
    from batchwright.api.main import run

    run()
