"""The pages as a reader meets them: in Chromium, on a phone, on a desk and on paper."""

import io
import json
import shutil

import numpy as np
import pytest
from browser import opened
from PIL import Image

from keras_transformer.diagnosis.finding import Finding
from trainers import report
from trainers.attention_page import write_attention
from trainers.report import write_report

# Text that would break out of the page, and text of other scripts, which must show.
HOSTILE = '</script><img src="http://example.org/x" onerror="alert(1)"><b>one</b> & two'
FOREIGN = "one עברית two العربية 日本 three"
FINDINGS = [
    Finding("<i>causality</i>", "repetition", False, {}, "0", HOSTILE, "mask the future"),
    Finding("memory", "memory", None, {}, "half of it", "the recipe does not say"),
    Finding("positions", "order", True, {}, "at most 1", "0.5"),
]


@pytest.fixture(scope="module")
def written(numbers_run, tmp_path_factory):
    """The report of a run with a log, with hostile and foreign sentences."""
    folder = tmp_path_factory.mktemp("report")
    shutil.copytree(numbers_run.path, folder / "<b>run")
    norms = {"source_embedding": 0.5, "encoder/layer_0": 0.25, "decoder/layer_0": 1.0}
    lines = [
        {
            "step": step,
            "loss": 9 / step,
            "learning_rate": 0.001 * step,
            "gradient_norm": 1.0,
            "layer_gradient_norms": norms,
        }
        for step in range(1, 50)
    ]
    lines.append({"step": 50, "val_loss": 1.0, "val_perplexity": 3.0, "val_bleu": 20.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "<b>run" / "metrics.jsonl").write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "examine", lambda run, sentences: FINDINGS)
        return write_report(folder / "<b>run", folder / "report.html", sources=[HOSTILE, FOREIGN])


@pytest.fixture(params=[390, 1280])
def reading(written, request):
    with opened(written, request.param, touch=request.param == 390) as reading:
        yield reading
        assert reading.messages == []
        assert [address for address in reading.requests if not address.startswith("data:")] == [
            written.resolve().as_uri()
        ]


def pixels(reading, selector):
    """A screenshot of one element: float [height, width, 3]."""
    content = reading.page.locator(selector).first.screenshot()
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), float)


def choose(reading, name, value):
    reading.page.select_option(f"#choose-{name}", value)


@pytest.mark.slow
def test_the_page_is_no_wider_than_the_window(reading):
    width = reading.page.viewport_size["width"]
    assert reading.page.evaluate("document.documentElement.scrollWidth") <= width
    for select in reading.page.locator("select").all():
        assert select.bounding_box()["height"] >= 44, "a finger must hit it"


@pytest.mark.slow
def test_every_choice_changes_the_picture(reading):
    choose(reading, "sentence", "1")
    before = pixels(reading, "#heat-map")
    for name, value in (("head", "0"), ("kind", "encoder"), ("kind", "decoder"), ("sentence", "2")):
        choose(reading, name, value)
        after = pixels(reading, "#heat-map")
        assert before.shape != after.shape or np.abs(before - after).max() > 50, name
        before = after
    assert reading.page.locator("#choose-layer option").count() == 1


@pytest.mark.slow
def test_a_small_picture_opens_its_head(reading):
    reading.page.locator("#thumbnails button").nth(1).click()
    assert reading.page.input_value("#choose-head") == "1"
    pressed = reading.page.locator("#thumbnails button[aria-pressed=true]")
    assert pressed.get_attribute("aria-label") == "layer 0, head 1"
    assert pixels(reading, "#thumbnails canvas").std() > 5


@pytest.mark.slow
def test_the_heat_map_is_drawn_and_tells_its_weights(reading):
    choose(reading, "kind", "decoder")
    picture = pixels(reading, "#heat-map")
    blue = (picture[..., 2] - picture[..., 0] > 30).mean()
    assert 0.005 < blue < 0.9, "a triangle of weights"
    # The first row looks at the start token alone.
    plot = reading.page.locator("#heat-map .plot-container .nsewdrag")
    plot.scroll_into_view_if_needed()
    reading.page.evaluate("scrollBy(0, -300)")
    box = plot.bounding_box()
    reading.page.mouse.move(box["x"] + 8, box["y"] + 8)
    label = reading.page.locator("#heat-map .hoverlayer .hovertext")
    label.wait_for()
    assert "looks at <s>" in label.text_content() and "weight 1.000" in label.text_content()
    assert reading.page.text_content("#heat-map-reading").endswith("looks at <s>: 1.000")


@pytest.mark.slow
def test_text_is_text_whatever_it_holds(reading):
    page = reading.page
    assert page.locator("h1").text_content() == "Report of <b>run"
    assert page.locator("img, main b:text-is('one')").count() == 0
    assert page.locator("#explorer-texts bdi").first.text_content() == HOSTILE
    assert HOSTILE in page.locator(".fault").text_content()
    choose(reading, "sentence", "1")
    assert page.locator("#explorer-texts bdi").first.text_content() == FOREIGN
    assert page.locator("#explorer-texts bdi").first.get_attribute("dir") == "auto"
    labels = page.locator("#heat-map .xtick text, #heat-map .xaxislayer-above text").all()
    assert "</s>" in [label.text_content() for label in labels]


@pytest.mark.slow
def test_every_chart_is_drawn(reading):
    assert reading.page.locator(".chart .main-svg").count() >= 6
    names = ["loss", "bleu", "perplexity", "rate", "gradient", "layers"]
    for name in names:
        assert reading.page.locator(f"#chart-{name} .scatterlayer .trace").count() > 0, name
        assert pixels(reading, f"#chart-{name}").std() > 3, name


@pytest.mark.slow
def test_it_prints_with_all_that_is_folded_away(written, tmp_path):
    with opened(written, 1280) as reading:
        states = []
        reading.page.expose_function("seen", lambda *state: states.append(state))
        reading.page.evaluate(
            """addEventListener("beforeprint", () => seen(
                document.querySelectorAll("details:not([open])").length,
                document.querySelector("#chart-loss .main-svg").getBoundingClientRect().width))"""
        )
        content = reading.page.pdf(path=tmp_path / "report.pdf", format="A4")
        assert content.startswith(b"%PDF") and reading.messages == []
        ((closed, width), *_) = states
        assert closed == 0 and width < 330
        assert reading.page.locator("details[open]").count() == 0


def test_the_page_of_one_sentence(numbers_run, tmp_path):
    path = write_attention(numbers_run.path, "one two three", output=tmp_path / "page.html")
    with opened(path, 390) as reading:
        assert reading.page.locator("#thumbnails button").count() == 4
        assert pixels(reading, "#heat-map").std() > 5
        assert reading.messages == [] and reading.requests == [path.resolve().as_uri()]
