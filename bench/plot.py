"""A bar chart as SVG, without a library; its colours are readable on light and dark pages."""

import math
from xml.sax.saxutils import escape

from bench.results import number

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 760, 210, 80, 34, 44
_FIRST, _OTHERS, _TEXT = "#2f7d5b", "#8a94a6", "#7a7f87"


def bars(title: str, values: list[tuple[str, float]]) -> str:
    """One bar a value, on a logarithmic scale that begins at the power of ten below the least."""
    height = _TOP + _ROW * max(len(values), 1) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" font-family="sans-serif" font-size="14" fill="{_TEXT}">',
        f"<title>{escape(title)}</title>",
        f'<text x="8" y="22" font-size="15">{escape(title)}</text>',
    ]
    for place, ((name, value), length) in enumerate(zip(values, _lengths(values), strict=True)):
        y = _TOP + place * _ROW
        colour = _FIRST if place == 0 else _OTHERS
        end = _LEFT + length + 8
        lines += [
            f'<text x="{_LEFT - 10}" y="{y + 17}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{_LEFT}" y="{y}" width="{length:.0f}" height="24" rx="3" fill="{colour}"/>',
            f'<text x="{end:.0f}" y="{y + 17}">{number(value)}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


def _lengths(values: list[tuple[str, float]]) -> list[float]:
    if not values:
        return []
    logs = [math.log10(max(value, 1e-9)) for _, value in values]
    start, end = math.floor(min(logs)), max(logs)
    room = _WIDTH - _LEFT - _RIGHT
    return [room * (log - start) / (end - start) if end > start else room for log in logs]
