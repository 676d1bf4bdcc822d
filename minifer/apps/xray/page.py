"""One self-contained file: style, scripts and data inlined, nothing fetched, nothing that a token's text could do.

A trace holds whatever people typed and models answered, and the page is opened from disk or from a server. Three
fences stand between such text and the browser, each enough alone:

    the data is JSON in ASCII with `<`, `>` and `&` escaped, so it holds no tag, no comment and no line separator
    the scripts only ever write text (`textContent`), never markup
    a content security policy names the hash of this page's own script and style, and forbids everything else

Nothing is compiled or minified: the page's source is the files of `page/`, one after the other.
"""

import base64
import hashlib
import html
import json
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

SCRIPTS = (
    "text.js",
    "model.js",
    "blocks.js",
    "story.js",
    "quiz.js",
    "perfetto.js",
    "canvas.js",
    "timeline.js",
    "strip.js",
    "map.js",
    "roof.js",
    "logits.js",
    "compare.js",
    "live.js",
    "main.js",
)
"""In the order in which they build on each other."""


def page_of(runs: Sequence[Mapping[str, Any]], ceilings: Mapping[str, Any] | None = None, *, live: bool = False) -> str:
    """The page of one run or two (A and B). A run is `{"label": str, "records": [...]}` with the lines of its trace.

    `ceilings` are `flops_per_s`, `read_bytes_per_s` and `source`, a sentence on where they come from. With `live`, the
    page may talk to the server it came from, and to nobody else.
    """
    style, script = _part("page.css"), _script()
    connect = "'self'" if live else "'none'"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; connect-src {connect}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": policy,
        "TITLE": html.escape(_title(runs, live)),
        "STYLE": style,
        "DATA": escaped_json({"runs": list(runs), "ceilings": ceilings, "live": live}),
        "SCRIPT": script,
    }
    pieces = _part("page.html").split("%%")  # text, NAME, text, NAME, text: what is put in is not looked at again
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def live_page() -> str:
    """The page that a server shows at `/`: empty at first, it asks `/trace` and listens to `/trace/stream`."""
    return page_of([], live=True)


def escaped_json(value: Any) -> str:
    """JSON that can stand inside a `<script>` element whatever its strings hold, and means the same.

    >>> escaped_json({"text": "</script><!--"})
    '{"text":"\\\\u003c/script\\\\u003e\\\\u003c!--"}'
    """
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _title(runs: Sequence[Mapping[str, Any]], live: bool) -> str:
    if live or not runs:
        return "minifer x-ray: live"
    about = runs[0]["records"][0].get("about", {})
    return "minifer x-ray: " + "".join(c for c in str(about.get("model", "a run"))[:80] if c.isprintable())


def _script() -> str:
    """All scripts in one function, so that none of their names can be reached from outside."""
    body = "\n".join(f"// ---- {name} ----\n{_part(name)}" for name in SCRIPTS)
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


@cache
def _part(name: str) -> str:
    return resources.files("minifer.apps.xray").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """How a content security policy names an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
