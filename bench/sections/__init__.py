"""All that is measured, in the order in which it is."""

from bench.section import Section
from bench.sections import finalization, ingestion, send, whole

SECTIONS: tuple[Section, ...] = (
    whole.SECTION,
    send.SECTION,
    ingestion.SECTION,
    finalization.SECTION,
)
