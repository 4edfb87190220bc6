"""jinja2 templates with their filters.

The security policy of the page names its only script by hash, so that no other script can run.
"""

import base64
import hashlib
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from holdfast.formatting import about, at_least, at_most, capital, ends, percent, short
from holdfast.report.heat_map import HEAT_LEVELS
from holdfast.report.question import setting
from holdfast.report.summary import estimate_kind, share_text


def template(name: str) -> Template:
    """Load a template of the folder `templates`."""
    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        at_least=at_least,
        at_most=at_most,
        about=about,
        ends=ends,
        estimate_kind=estimate_kind,
        percent=percent,
        setting=setting,
        short=short,
        capital=capital,
        share=share_text,
    )
    script = (files("holdfast.report") / "templates" / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(script=Markup(script), script_hash=digest, heat_levels=HEAT_LEVELS)
    return environment.get_template(name)
