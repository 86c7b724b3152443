"""`python -m worker`: hears signals from here on, for what `worker.main` imports takes seconds."""

from worker.early import leave_at_a_signal

if __name__ == "__main__":
    leave_at_a_signal()
    from worker.main import run

    run()
