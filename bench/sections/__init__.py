"""All that is measured, in the order in which it is."""

from bench.section import Section
from bench.sections import (
    finalization,
    hot,
    ingestion,
    order,
    progress,
    resources,
    send,
    serving,
    small,
    stats,
    transfer,
    whole,
    workers,
)

SECTIONS: tuple[Section, ...] = (
    whole.SECTION,
    send.SECTION,
    ingestion.SECTION,
    finalization.SECTION,
    resources.SECTION,
    small.SECTION,
    serving.SECTION,
    progress.SECTION,
    order.SECTION,
    workers.SECTION,
    hot.SECTION,
    stats.SECTION,
    transfer.SECTION,
)
