"""Figures as text for a terminal."""

from bench.results import Figure, Report


def table(figures: list[Figure]) -> str:
    rows = [(figure.what, figure.shown, figure.wanted, figure.verdict) for figure in figures]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = (
        "  ".join((what.ljust(widths[0]), shown.rjust(widths[1]), wanted.ljust(widths[2]), verdict)).rstrip()
        for what, shown, wanted, verdict in rows
    )
    return "\n".join(f"  {line}" for line in lines)


def summary(report: Report) -> str:
    """Every target in one table, and how many are met."""
    judged = [figure for figure in report.figures if figure.target is not None]
    met = sum(figure.is_met is True for figure in judged)
    failed = [f"  {section.name}: {section.error}" for section in report.sections if section.error]
    head = f"\n{met} of {len(judged)} targets met, in {report.seconds / 60:.1f} minutes"
    return "\n".join((head, table(judged), *failed))
