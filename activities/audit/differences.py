"""What an audit can find, and what it says of it."""

from enum import StrEnum

from pydantic import BaseModel

from batchwright.contracts.audit import AuditCount


class Kind(StrEnum):
    RUN_MISSING = "run_missing"  # a live row that Temporal knows no run of
    RUN_ENDED = "run_ended"  # a live row whose run has ended
    ROW_MISSING = "row_missing"  # a run without a row
    RUN_OPEN = "run_open"  # a row that ended a while ago, and a run that did not
    FILE_MISSING = "file_missing"  # a file's row whose object is gone
    COUNTS = "counts"  # an ended row with files whose counts do not add up to its lines


class Difference(BaseModel):
    """`repair` is what was done about it, or would be; empty: nothing can be, from here."""

    kind: Kind
    tenant: str
    id: str  # of the batch or file
    what: str
    repair: str = ""
    repaired: bool = False


class Report(BaseModel):
    differences: list[Difference]
    rows: int  # live ones that were looked at
    runs: int
    files: int
    unlisted: int = 0  # missing files beyond those that are listed

    @property
    def left(self) -> int:
        """Differences that are still there."""
        return self.unlisted + sum(not one.repaired for one in self.differences)

    @property
    def counts(self) -> dict[Kind, AuditCount]:
        """Of every kind there is."""
        made = {kind: AuditCount() for kind in Kind}
        made[Kind.FILE_MISSING] = AuditCount(found=self.unlisted, left=self.unlisted)
        for one in self.differences:
            before = made[one.kind]
            made[one.kind] = AuditCount(found=before.found + 1, left=before.left + (not one.repaired))
        return made
