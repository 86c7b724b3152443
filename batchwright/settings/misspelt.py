"""Variables that are no settings, but nearly: they would be ignored, and nobody would know."""

import logging
import os
from difflib import get_close_matches

from batchwright.settings import Settings
from batchwright.settings.otel import variable

logger = logging.getLogger(__name__)

_PREFIX = "BATCHWRIGHT_"
_LIKENESS = 0.85  # `BACKEND` for `BACKENDS`; not `API_SERVICE_PORT`, which Kubernetes sets, for `API_PORT`


def misspelt() -> dict[str, str]:
    """Each such variable of the environment, and the setting that may be meant."""
    known = {variable(name) for name in Settings.model_fields}
    endings = [name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)]
    found: dict[str, str] = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            near = get_close_matches(name.removeprefix(_PREFIX), endings, n=1, cutoff=_LIKENESS)
            found |= {name: _PREFIX + near[0]} if near else {}
    return found


def warn_of_misspelt() -> None:
    """In the log of a process that starts."""
    for name, meant in misspelt().items():
        logger.warning("a variable is no setting and is ignored", extra={"variable": name, "meant": meant})
