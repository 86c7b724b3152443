"""The differences that a consistency check can find, and the report that contains them."""

from enum import StrEnum

from pydantic import BaseModel

from batchwright.contracts.temporal_payloads.consistency import DifferenceCount


class DifferenceKind(StrEnum):
    RUN_MISSING = "run_missing"  # a live row without a run in Temporal
    RUN_ENDED = "run_ended"  # a live row whose run has ended
    ROW_MISSING = "row_missing"  # a run without a row
    ROW_OUTDATED = "row_outdated"  # a row that does not know the models of an open run
    RUN_OPEN = "run_open"  # a row that ended a while ago, and an open run
    FILE_MISSING = "file_missing"  # a file's row without an object
    COUNTS = "counts"  # an ended row whose counts do not add up to its lines


class Difference(BaseModel):
    """One difference that a consistency check found.

    Attributes:
        what: the difference, as a sentence for the operator.
        repair: the change that would repair the difference; empty if a consistency check cannot repair it.
        repaired: True if the consistency check made this change.
    """

    kind: DifferenceKind
    tenant: str
    id: str  # id of the batch or file
    what: str
    repair: str = ""
    repaired: bool = False


class ConsistencyReport(BaseModel):
    differences: list[Difference]
    rows: int  # live rows that were compared
    runs: int
    files: int
    unlisted: int = 0  # missing files that are not listed

    @property
    def left(self) -> int:
        """Number of differences that were not repaired."""
        return self.unlisted + sum(not difference.repaired for difference in self.differences)

    @property
    def counts(self) -> dict[DifferenceKind, DifferenceCount]:
        """Count the differences of each kind: how many were found, and how many of them were not repaired.

        Every kind is included, even if its numbers are 0.
        """
        counts = {kind: DifferenceCount() for kind in DifferenceKind}
        counts[DifferenceKind.FILE_MISSING] = DifferenceCount(found=self.unlisted, left=self.unlisted)
        for difference in self.differences:
            before, left = counts[difference.kind], not difference.repaired
            counts[difference.kind] = DifferenceCount(found=before.found + 1, left=before.left + left)
        return counts
