"""Plotly's figures: what they show, and that text stays text."""

import json
import math

import numpy as np

from keras_transformer.diagnosis.pictures import COLOURS, Series, curves, heat_map, label


def test_a_heat_map_names_places_since_a_piece_may_come_twice():
    figure = heat_map(np.array([[0.25, 0.5, 0.25]]), ["</s>"], ["▁the", "▁dog", "▁the"])
    (trace,) = figure.data
    assert trace.x is None and list(figure.layout.xaxis.tickvals) == [0, 1, 2]
    assert list(figure.layout.xaxis.ticktext) == ["▁the", "▁dog", "▁the"]
    assert (trace.zmin, trace.zmax) == (0, 1), "so that heads can be compared"
    assert list(figure.layout.yaxis.range) == [0.5, -0.5], "the first row is at the top"


def test_the_pointer_shows_both_pieces_whole_and_the_weight():
    long = "▁Donaudampfschifffahrt<"
    (trace,) = heat_map(np.ones((1, 1)), [long], ["&"]).data
    assert trace.text[0][0] == "▁Donaudampfschifffahrt&lt; looks at &amp;"
    assert "%{z" in trace.hovertemplate and "%{text}" in trace.hovertemplate
    assert label(long) == "▁Donaudampfsc…"


def test_curves_leave_a_gap_for_what_is_no_number():
    figure = curves([Series("<b>", [1, 2, 3], [1.0, math.nan, None])], "a <unit>")
    assert figure.data[0].y == (1.0, None, None)
    assert figure.data[0].name == "&lt;b&gt;"
    assert figure.layout.yaxis.title.text == "a &lt;unit&gt;"
    assert json.loads(figure.to_json())["data"][0]["y"] == [1.0, None, None]


def test_a_legend_is_for_two_or_three_curves():
    def has_legend(count):
        return curves([Series(str(i), [1], [1.0]) for i in range(count)], "").layout.showlegend

    assert [has_legend(count) for count in (1, 2, 3, 4, 20)] == [False, True, True, False, False]


def test_a_finger_on_a_picture_scrolls_the_page():
    for figure in (curves([Series("a", [1], [1.0])], ""), heat_map(np.ones((1, 1)), "a", "b")):
        assert figure.layout.dragmode is False
        assert figure.layout.xaxis.fixedrange and figure.layout.yaxis.fixedrange


def test_a_logarithmic_axis():
    assert curves([Series("a", [1], [1.0])], "", logarithmic=True).layout.yaxis.type == "log"


def test_the_colours_grow_darker():
    assert [place for place, _ in COLOURS] == sorted(place for place, _ in COLOURS)
    light = [sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for _, colour in COLOURS]
    assert light == sorted(light, reverse=True)
