"""One HTML file that needs nothing else: its style, scripts, plotly.js and data are inside it."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any, NamedTuple

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from keras_transformer.diagnosis.attention_maps import KINDS, AttentionMaps
from keras_transformer.diagnosis.pictures import LABEL_LENGTH, heat_map


class Section(NamedTuple):
    """A part of a page: its id, its heading, and its HTML, in which all text is escaped."""

    name: str
    heading: str
    body: str


class Page:
    """Collects the parts of a page, and writes them as one HTML document.

    Everything that comes from text is escaped by whoever makes HTML of it, with `escape` or
    `text_block`. Beside that, the page's own policy allows its own scripts alone, by their hash,
    and no request: text that got through could neither run nor load anything.

    Args:
        title: str.
        subtitle: str.
        figures: sequence of (str, str). Numbers at the top, and what each is.

    Example:

    >>> page = Page("A run", "English to German", [("31.7", "BLEU")])
    >>> page.add("notes", "Notes", text_block("<script>alert(1)</script>"))
    >>> "<script>alert" in page.html()
    False
    """

    def __init__(
        self, title: str, subtitle: str = "", figures: Sequence[tuple[str, str]] = ()
    ) -> None:
        self.title = title
        self.subtitle = subtitle
        self.figures = list(figures)
        self.sections: list[Section] = []
        self._data: dict[str, Any] = {"charts": {}, "explorer": None}

    def add(self, name: str, heading: str, body: str) -> None:
        """Adds a section.

        Args:
            name: str. Id of the section, for links.
            heading: str.
            body: str. HTML.
        """
        self.sections.append(Section(name, heading, body))

    def chart(self, name: str, heading: str, figure: go.Figure, note: str = "") -> str:
        """The HTML of a plotly figure, which is drawn when the page is opened.

        Args:
            name: str. Id of the chart.
            heading: str. What stands above it.
            figure: plotly `Figure`.
            note: str. What stands below it.
        """
        self._data["charts"][name] = _plain_json(figure)
        below = f"<p class='note'>{escape(note)}</p>" if note else ""
        return (
            f"<figure class='chart'><figcaption>{escape(heading)}</figcaption>"
            f"<div id='chart-{escape(name)}' class='plot'></div>{below}</figure>"
        )

    def explorer(self, sentences: Sequence[tuple[dict[str, str], AttentionMaps]]) -> str:
        """The HTML with which a reader goes through the attention of some sentences.

        Args:
            sentences: sequence of pairs: texts by what they are, such as `{"source": "One.",
                "translation": "Eins."}`, and their `AttentionMaps`.
        """
        self._data["explorer"] = {
            "template": _plain_json(heat_map([[0.0]], [""], [""])),
            "kinds": KINDS,
            "label_length": LABEL_LENGTH,
            "sentences": [{"texts": texts, **maps.as_dict()} for texts, maps in sentences],
        }
        options = "".join(
            f"<option value='{number}' dir='auto'>{escape(_short(texts['source']))}</option>"
            for number, (texts, _) in enumerate(sentences)
        )
        kinds = "".join(
            f"<option value='{kind}'{' selected' if kind == 'cross' else ''}>{title}</option>"
            for kind, title in KINDS.items()
        )
        return _resource("explorer.html").format(sentences=options, kinds=kinds)

    def html(self) -> str:
        """The whole document."""
        plotly = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
        script = _resource("page.js")
        contents = "".join(
            f"<li><a href='#{escape(section.name)}'>{escape(section.heading)}</a></li>"
            for section in self.sections
        )
        figures = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(number)}</dd></div>"
            for number, name in self.figures
        )
        body = "".join(
            f"<section id='{escape(section.name)}'><h2>{escape(section.heading)}</h2>"
            f"{section.body}</section>\n"
            for section in self.sections
        )
        return (
            "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
            "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; "
            "img-src data: blob:; style-src 'unsafe-inline'; script-src "
            f"'sha256-{_digest(plotly)}' 'sha256-{_digest(script)}'\">\n"
            "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
            f"<title>{escape(self.title)}</title>\n<link rel='icon' href='data:,'>\n"
            f"<style>{_resource('page.css')}</style>\n</head>\n<body>\n"
            f"<header><h1>{escape(self.title)}</h1><p>{escape(self.subtitle)}</p>"
            f"{f'<dl class=figures>{figures}</dl>' if figures else ''}</header>\n"
            f"<nav aria-label='Contents'><ol>{contents}</ol></nav>\n"
            f"<main>\n{body}</main>\n"
            f"<script type='application/json' id='page-data'>{_json(self._data)}</script>\n"
            f"<script>{plotly}</script>\n<script>{script}</script>\n</body>\n</html>\n"
        )


def escape(text: str) -> str:
    """Text for HTML, within quotes too.

    Example:

    >>> escape("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(text, quote=True)


def text_block(text: str, name: str = "") -> str:
    """A paragraph of text in any language, written in its own direction.

    Args:
        text: str.
        name: str. What it is, such as `"source"`, in small letters before it.
    """
    before = f"<span class='name'>{escape(name)}</span>" if name else ""
    shown = escape(text) if text.strip() else "<i>(empty)</i>"
    return f"<div class='text'>{before}<bdi dir='auto'>{shown}</bdi></div>"


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Names and values, one below the other.

    Example:

    >>> table([("steps", "3,740")])
    "<table><tr><th scope='row'>steps</th><td>3,740</td></tr></table>"
    """
    lines = "".join(
        f"<tr><th scope='row'>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table>{lines}</table>"


def _plain_json(figure: go.Figure) -> dict[str, Any]:
    return json.loads(figure.to_json(engine="json"))


def _json(data: dict[str, Any]) -> str:
    """JSON that cannot end the script element it stands in, nor begin a comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def _short(text: str, length: int = 90) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _resource(name: str) -> str:
    folder = resources.files("keras_transformer.diagnosis") / "page_files"
    return (folder / name).read_bytes().decode()
