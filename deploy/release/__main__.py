"""Make and examine the files of a release: `python -m deploy.release build|sbom|audit`."""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

from deploy.release.artifacts import build_release, write_sbom
from deploy.release.audit import BadAcceptance, audit
from deploy.release.checks import find_problems

ROOT = Path(__file__).parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m deploy.release", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="wheel, source distribution, chart, SBOM and checksums")
    build.add_argument("folder", type=Path)
    build.add_argument("--dry-run", action="store_true", help="also build what may not be released yet")
    sbom = commands.add_parser("sbom", help="what the image installs, as CycloneDX")
    sbom.add_argument("folder", type=Path)
    commands.add_parser("audit", help="known vulnerabilities of what the image installs")
    chosen = parser.parse_args(arguments)
    if chosen.command == "audit":
        return _audit()
    if chosen.command == "sbom":
        print(write_sbom(ROOT, chosen.folder))
        return 0
    return _build(chosen.folder, is_dry_run=chosen.dry_run)


def _audit() -> int:
    accepted = Path(__file__).with_name("accepted_vulnerabilities.toml").read_text()
    try:
        return audit(ROOT, accepted, datetime.now(UTC).date())
    except BadAcceptance as error:
        print(error, file=sys.stderr)
        return 2


def _build(folder: Path, *, is_dry_run: bool) -> int:
    problems = find_problems(ROOT)
    for problem in problems:
        print(f"not ready: {problem}", file=sys.stderr)
    if problems and not is_dry_run:
        return 1
    for path in build_release(ROOT, folder):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
