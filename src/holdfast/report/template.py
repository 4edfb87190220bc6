"""jinja2 templates with their filters.

The security policy of the page names its only script by hash, so that no other script can run.
"""

import base64
import functools
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from holdfast.formatting import (
    capitalise,
    format_bounds,
    format_lower,
    format_nearest,
    format_percent,
    format_upper,
    shorten,
)
from holdfast.report.heat_map import HEAT_LEVELS
from holdfast.report.question import setting
from holdfast.report.summary import estimate_kind, share_text


def template(name: str) -> Template:
    """Load a template of the folder `templates`; each is compiled once in a process (all those of a run: 50 ms)."""
    return _environment().get_template(name)


@functools.cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        at_least=format_lower,
        at_most=format_upper,
        about=format_nearest,
        ends=format_bounds,
        estimate_kind=estimate_kind,
        percent=format_percent,
        setting=setting,
        short=shorten,
        capital=capitalise,
        share=share_text,
    )
    script = (files("holdfast.report") / "templates" / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(script=Markup(script), script_hash=digest, heat_levels=HEAT_LEVELS)
    return environment
