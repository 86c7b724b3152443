"""A known vulnerability of a dependency can be accepted, but only with a reason and until a date."""

from datetime import date
from pathlib import Path

import pytest

from deploy.release import audit as module
from deploy.release.audit import BadAcceptance, audit, parse_acceptances

TODAY = date(2026, 12, 1)
ACCEPTED = """
[[accepted]]
id = "GHSA-abcd-efgh-ijkl"
reason = "The function is never called."
until = 2026-12-01
"""


def test_an_accepted_vulnerability_is_ignored_on_its_last_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
    commands: list[list[str | Path]] = []

    def run(command: list[str | Path], root: Path) -> int:
        commands.append(command)
        return 1

    monkeypatch.setattr(module, "install_locked", lambda root: root)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    monkeypatch.setattr(module, "run", run)
    assert audit(tmp_path, ACCEPTED, TODAY) == 1
    assert commands[0][-2:] == ["--ignore-vuln", "GHSA-abcd-efgh-ijkl"]


def test_an_acceptance_ends() -> None:
    with pytest.raises(BadAcceptance, match="GHSA-abcd-efgh-ijkl was accepted until 2026-12-01"):
        parse_acceptances(ACCEPTED, date(2026, 12, 2))


def test_an_acceptance_has_an_end_within_half_a_year() -> None:
    accepted = ACCEPTED.replace("2026-12-01", "2027-05-31")
    with pytest.raises(BadAcceptance, match="180 days are the most"):
        parse_acceptances(accepted, TODAY)
    assert parse_acceptances(accepted, date(2026, 12, 2))[0].until == date(2027, 5, 31)


@pytest.mark.parametrize("left_out", ["id", "reason", "until"])
def test_an_incomplete_acceptance_is_refused(left_out: str) -> None:
    lines = [line for line in ACCEPTED.splitlines() if not line.startswith(left_out)]
    with pytest.raises(BadAcceptance, match=left_out):
        parse_acceptances("\n".join(lines), TODAY)


@pytest.mark.parametrize("accepted", ["[[accepted", 'typo = "x"', ACCEPTED.replace("GHSA-", "ghsa ")])
def test_a_wrong_file_is_refused(accepted: str) -> None:
    with pytest.raises(BadAcceptance, match=r"accepted_vulnerabilities\.toml is wrong"):
        parse_acceptances(accepted, TODAY)
