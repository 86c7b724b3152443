"""Compares the locked packages with databases of vulnerabilities.

A known vulnerability can be accepted, with a reason and until a certain day.
"""

import tomllib
from datetime import date, timedelta
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.release.environment import install_locked, run, tool

_LONGEST = timedelta(days=180)


class BadAcceptance(Exception):
    """The acceptance of a known vulnerability is incomplete, ends too late, or has ended."""


class Acceptance(BaseModel):
    """A known vulnerability that is accepted. Until the end of the day `until`, it does not stop a
    release.
    """

    model_config = ConfigDict(extra="forbid")
    id: str = Field(pattern=r"^(CVE|GHSA|PYSEC|OSV)-[\w-]+$")
    reason: str = Field(min_length=10)
    until: date


class _Acceptances(BaseModel):
    model_config = ConfigDict(extra="forbid")
    accepted: list[Acceptance] = []


def audit(root: Path, accepted: str, today: date) -> int:
    """Check the packages that the image installs for known vulnerabilities. Return pip-audit's exit code.

    Args:
        accepted: TOML document with the accepted vulnerabilities.

    Raises:
        BadAcceptance: an acceptance is invalid or has ended.
    """
    ignored = [option for each in parse_acceptances(accepted, today) for option in ("--ignore-vuln", each.id)]
    [packages] = install_locked(root).glob("lib/python*/site-packages")
    return run([tool(root, "pip-audit"), "--strict", "--path", packages, *ignored], root)


def parse_acceptances(accepted: str, today: date) -> list[Acceptance]:
    """Read the accepted vulnerabilities from a TOML document.

    Raises:
        BadAcceptance: an acceptance is incomplete, has ended, or ends more than 180 days after `today`.
    """
    try:
        found = _Acceptances.model_validate(tomllib.loads(accepted)).accepted
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise BadAcceptance(f"accepted_vulnerabilities.toml is wrong: {error}") from error
    for each in found:
        if each.until < today:
            raise BadAcceptance(f"{each.id} was accepted until {each.until}: upgrade, or accept it again.")
        if each.until > today + _LONGEST:
            days = _LONGEST.days
            raise BadAcceptance(f"{each.id} is accepted until {each.until}: {days} days are the most.")
    return found
