"""Validation without a batch: for the command line, before anything is uploaded."""

from collections.abc import Iterator
from pathlib import Path

from batchwright.contracts.openai import Endpoint, Profile
from batchwright.rules.checks import Limits
from batchwright.rules.validation import ValidationReport, validate

_PIECE_BYTES = 1024 * 1024


def validate_file(path: Path, endpoint: Endpoint, limits: Limits, profile: Profile) -> ValidationReport:
    """Raises OSError where the file cannot be read."""
    return validate(_pieces(path), endpoint, limits, profile)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            yield piece
