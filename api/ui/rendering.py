"""Renders the templates of the pages, and formats times, numbers and JSON for them."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from urllib.parse import urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.filters import do_filesizeformat
from markupsafe import Markup, escape

from batchwright.api.ui import batch_view
from batchwright.rules.duration_text import duration_text

_CODE = re.compile(r"`([^`]+)`")
_SCHEMA = re.compile(r"&#34;#/components/schemas/(\w+)&#34;")


class Renderer:
    def __init__(self, digests: Mapping[str, str], clock: Callable[[], datetime], *, has_pages: bool) -> None:
        """Create the renderer.

        Args:
            digests: digest of each static file's content, by file name. The digest is a part of the file's
                URL.
            clock: function that returns the current time.
            has_pages: False if only `/docs` is served.
        """
        static = {name: f"/ui/static/{name}?v={digest}" for name, digest in digests.items()}
        self._clock = clock
        self._fixed = {"has_pages": has_pages, "link": link, "static": static, "view": batch_view}

    def render(self, template: str, context: Mapping[str, object]) -> bytes:
        """Render a template and return UTF-8. Characters that UTF-8 cannot represent are replaced."""
        own = {**self._fixed, "now": self._clock().timestamp()}
        return _environment().get_template(template).render({**context, **own}).encode(errors="replace")


@cache
def _environment() -> Environment:
    """Return the Jinja environment, which loads and compiles the templates. It is created once per process,
    because compiling takes long.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "time": time_element,
        "number": "{:,}".format,
        "size": partial(do_filesizeformat, binary=True),
        "duration": duration_text,
        "money": money_text,
        "exact_money": lambda amount: f"{Decimal(str(amount)):,f}",
        "schema": schema_text,
        "code": code_text,
        "words": lambda text: str(text).replace("_", " "),
    }
    macros = environment.get_template("macros.html").make_module({"link": link})
    environment.globals.update({name: macro for name, macro in vars(macros).items() if name[0] != "_"})
    return environment


def link(path: str, **query: object) -> str:
    """Return the URL of a page. Query parameters that are None or empty are left out."""
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"/ui{path}?{text}" if text else f"/ui{path}"


def time_element(seconds: int | datetime) -> Markup:
    """Return an HTML element that shows a time, given in Unix seconds or as a datetime."""
    time = seconds if isinstance(seconds, datetime) else datetime.fromtimestamp(seconds, UTC)
    shown = time.strftime("%Y-%m-%d %H:%M:%S")
    return Markup('<time datetime="{}">{}</time>').format(time.isoformat(), shown)


def money_text(amount: str) -> str:
    """Format an amount of money with at least two significant digits, such as `12.35` or `0.0042`."""
    value = Decimal(amount)
    places = 2 if abs(value) >= 1 or not value else 1 - value.adjusted()
    return f"{value:,.{places}f}"


def code_text(text: str) -> Markup:
    """Convert text to HTML. Parts in backquotes become `<code>` elements."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def schema_text(value: object, indent: int | None = None) -> Markup:
    """Return a part of the OpenAPI description as HTML. The name of each schema becomes a link to this
    schema.
    """
    return Markup(_SCHEMA.sub(r'<a href="#\1">\1</a>', str(escape(json.dumps(value, indent=indent)))))
