"""What is measured, and how it is printed."""

from statistics import median

import msgspec


class Measured(msgspec.Struct):
    """One run: `cpu_seconds` and `peak_mib` of the processes that send, `stack_cpu_seconds` of all but the
    simulator."""

    requests: int
    seconds: float
    cpu_seconds: float
    peak_mib: float
    stack_cpu_seconds: float | None = None

    @property
    def rate(self) -> float:
        return self.requests / self.seconds

    @property
    def cpu_per_thousand(self) -> float:
        return self.cpu_seconds / self.requests * 1000


class Round(msgspec.Struct):
    """Measured one after the other, so that both saw the same machine."""

    bare: Measured
    batch: Measured

    @property
    def rate_ratio(self) -> float:
        return self.batch.rate / self.bare.rate

    @property
    def cpu_ratio(self) -> float:
        return self.batch.cpu_per_thousand / self.bare.cpu_per_thousand


def table(rounds: list[Round]) -> str:
    """Medians over the rounds."""
    bare, batch = [r.bare for r in rounds], [r.batch for r in rounds]
    rows = [
        ("", "requests/s", "CPU s per 1,000", "peak MiB"),
        _row("bare aiohttp loop", bare),
        _row("batch, workers", batch),
        (
            "ratio",
            f"{median(r.rate_ratio for r in rounds):.2f}",
            f"{median(r.cpu_ratio for r in rounds):.2f}",
            "",
        ),
    ]
    return "\n".join(
        f"{name:<20}{rate:>12}{cpu:>18}{memory:>12}".rstrip() for name, rate, cpu, memory in rows
    )


def _row(name: str, runs: list[Measured]) -> tuple[str, str, str, str]:
    return (
        name,
        f"{median(run.rate for run in runs):,.0f}",
        f"{median(run.cpu_per_thousand for run in runs):.2f}",
        f"{max(run.peak_mib for run in runs):.0f}",
    )
