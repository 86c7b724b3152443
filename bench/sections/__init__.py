"""All sections of the benchmark, in the order in which they are measured."""

from bench.section import Section
from bench.sections import (
    calls,
    direct,
    finalization,
    hot,
    ingestion,
    order,
    progress,
    resources,
    send,
    serving,
    small,
    stages,
    stats,
    tracing,
    transfer,
    uneven,
    whole,
    workers,
)

SECTIONS: tuple[Section, ...] = (
    whole.SECTION,
    stages.SECTION,
    send.SECTION,
    ingestion.SECTION,
    finalization.SECTION,
    resources.SECTION,
    small.SECTION,
    calls.SECTION,
    direct.SECTION,
    serving.SECTION,
    progress.SECTION,
    order.SECTION,
    workers.SECTION,
    uneven.SECTION,
    hot.SECTION,
    stats.SECTION,
    transfer.SECTION,
    tracing.SECTION,
)
