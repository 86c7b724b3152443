"""Warn about environment variables that look like settings, but are misspelt or were removed."""

import logging
import os
import re
from difflib import get_close_matches

from batchwright.settings import Settings
from batchwright.settings.observability_settings import variable_name

logger = logging.getLogger(__name__)

_PREFIX = "BATCHWRIGHT_"
_SIMILARITY = 0.85  # `BACKEND` for `BACKENDS`; not `API_SERVICE_PORT`, which Kubernetes sets, for `API_PORT`
# Variables of compose files, of `dev.env` and of tests, and variables that Kubernetes sets for services.
_NO_SETTINGS = re.compile(
    r"BATCHWRIGHT_(IMAGE|DEV_SIMULATOR|TEST_\w+|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?))"
)


def unknown_variables() -> dict[str, str]:
    """Return the environment variables that start with `BATCHWRIGHT_` but belong to no setting.

    The keys are the names of these variables. Each value is the most similar variable of a setting; empty if
    no setting has a similar variable. Compose files, tests and Kubernetes set other variables that start with
    `BATCHWRIGHT_`. Such a variable is included only if a setting has a similar variable.
    """
    known = {variable_name(name) for name in Settings.model_fields}
    endings = [name.removeprefix(_PREFIX) for name in known if name.startswith(_PREFIX)]
    found: dict[str, str] = {}
    for name in sorted(os.environ):
        if name.startswith(_PREFIX) and name not in known:
            near = get_close_matches(name.removeprefix(_PREFIX), endings, n=1, cutoff=_SIMILARITY)
            if near or not _NO_SETTINGS.fullmatch(name):
                found[name] = _PREFIX + near[0] if near else ""
    return found


def warn_about_unknown_variables() -> None:
    """Log a warning for each environment variable that looks like a setting but belongs to none."""
    for name, meant in unknown_variables().items():
        extra = {"variable": name, **({"meant": meant} if meant else {})}
        logger.warning("environment variable is not a setting and is ignored", extra=extra)
