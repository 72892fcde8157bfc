"""The HTML of a page: nothing breaks out of it, and it needs nothing else."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from keras_transformer.diagnosis.attention_maps import AttentionMaps
from keras_transformer.diagnosis.page import Page, escape, table, text_block
from keras_transformer.diagnosis.pictures import Series, curves

HOSTILE = (
    "</script><script>alert('1')</script><!-- <img src=x onerror=\"a()\"> &amp; \u2028 {kinds}"
)


class Reader(HTMLParser):
    """Collects the tags of a page, its scripts and its text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.inside, self.text = [], [], None, ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag):
        self.inside = None

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def html():
    maps = AttentionMaps(
        [HOSTILE, "</s>"],
        ["<s>"],
        ["</s>"],
        {
            "encoder": [np.full((1, 2, 2), 0.5)],
            "decoder": [np.ones((1, 1, 1))],
            "cross": [np.full((1, 1, 2), np.nan)],
        },
    )
    page = Page(HOSTILE, HOSTILE, [(HOSTILE, HOSTILE)])
    body = page.explorer([({"source": HOSTILE, "translation": HOSTILE}, maps)])
    body += page.chart("loss", HOSTILE, curves([Series(HOSTILE, [1], [1.0])], HOSTILE), HOSTILE)
    page.add("all", HOSTILE, body + table([(HOSTILE, HOSTILE)]) + text_block(HOSTILE, HOSTILE))
    return page.html()


@pytest.fixture(scope="module")
def reader(html):
    return Reader(html)


def test_no_text_becomes_a_tag_or_a_script(reader):
    assert len(reader.scripts) == 3
    tags = {tag for tag, _ in reader.tags}
    assert "img" not in tags and {"h1", "h2", "select", "nav"} <= tags
    assert not any(name.startswith("on") for _, attributes in reader.tags for name in attributes)
    assert reader.text.count(HOSTILE) >= 10


def test_the_data_is_json_with_the_text_as_it_was(reader):
    data = json.loads(reader.scripts[0])
    (sentence,) = data["explorer"]["sentences"]
    assert sentence["texts"] == {"source": HOSTILE, "translation": HOSTILE}
    assert sentence["rows"]["encoder"][0] == HOSTILE
    assert sentence["weights"]["encoder"] == [[[[500, 500], [500, 500]]]]
    assert sentence["weights"]["cross"] == [[[[-1, -1]]]]
    assert list(data["charts"]) == ["loss"]


def test_only_its_own_scripts_may_run_and_nothing_may_be_loaded(reader):
    (policy,) = [
        attributes["content"]
        for tag, attributes in reader.tags
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy and "unsafe-eval" not in policy
    (allowed,) = re.findall(r"script-src ([^;]+)", policy)
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
        for script in reader.scripts[1:]
    ]
    assert allowed.split() == hashes


def test_it_refers_to_no_other_file(reader):
    for tag, attributes in reader.tags:
        for name in ("src", "href", "data", "action"):
            assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes)


def test_the_contents_lead_to_the_sections(reader):
    ids = {attributes.get("id") for _, attributes in reader.tags}
    links = [attributes["href"][1:] for tag, attributes in reader.tags if tag == "a"]
    assert links == ["all"] and set(links) <= ids


def test_empty_text_is_told_from_none():
    assert "(empty)" in text_block("  ")
    assert escape("\"'<>&") == "&quot;&#x27;&lt;&gt;&amp;"
