"""matplotlib's grids: every head is there, in its colours, whatever the pieces are."""

import numpy as np
from matplotlib._pylab_helpers import Gcf

from keras_transformer.diagnosis.heat_map_images import heat_map_grid, image_of, readable_inches


def test_every_head_of_every_layer_has_its_picture():
    layers = [np.full((2, 3, 4), value) for value in (0.0, 1.0)]
    figure = heat_map_grid(layers, list("abc"), list("wxyz"), "title", first_layer=4)
    titles = [axes.get_title() for axes in figure.axes]
    assert titles == ["layer 4, head 0", "layer 4, head 1", "layer 5, head 0", "layer 5, head 1"]
    for axes, value in zip(figure.axes, (0, 0, 1, 1), strict=True):
        assert axes.images[0].get_array().shape == (3, 4)
        assert (axes.images[0].get_array() == value).all()
        assert axes.images[0].get_clim() == (0, 1)
    assert [text.get_text() for text in figure.axes[2].get_xticklabels()] == list("wxyz")
    assert [text.get_text() for text in figure.axes[0].get_yticklabels()] == list("abc")
    assert figure.axes[1].get_yticklabels() == []


def test_dark_cells_are_where_the_weights_are():
    weights = np.zeros((1, 2, 2))
    weights[0, 0, 1] = 1.0
    image = image_of(heat_map_grid([weights], ["a", "b"], ["c", "d"]))
    assert image.dtype == np.uint8 and image.shape[2] == 3
    dark = np.argwhere((image[..., 0] < 60) & (image[..., 2] > 80))
    share = dark.mean(axis=0) / image.shape[:2]
    assert share[0] < 0.5 < share[1], "at the top right"


def test_labels_have_room_however_many_pieces_there_are():
    for pieces, labelled in ((20, 20), (50, 50), (100, 50), (129, 43)):
        names = [f"piece {number}" for number in range(pieces)]
        inches = readable_inches(pieces)
        figure = heat_map_grid([np.eye(pieces)[None]], names, names, inches=inches)
        (axes,) = figure.axes
        for ticks, labels in (
            (axes.get_xticks(), axes.get_xticklabels()),
            (axes.get_yticks(), axes.get_yticklabels()),
        ):
            assert len(ticks) == labelled and labelled * 0.1 <= inches
            assert [label.get_text() for label in labels] == [names[place] for place in ticks]


def test_pieces_of_any_kind_are_drawn():
    pieces = ["$x$", "\\frac", "<0x0A>", "▁日本", "עברית", "", "x" * 300]
    image_of(heat_map_grid([np.ones((1, 7, 7)) / 7], pieces, pieces, "a $title$"), dpi=40)
    image_of(heat_map_grid([np.full((1, 1, 1), np.nan)], ["a"], ["b"]), dpi=40)


def test_pyplots_list_of_figures_stays_as_it_was():
    before = dict(Gcf.figs)
    image_of(heat_map_grid([np.ones((1, 1, 1))], ["a"], ["b"]), dpi=40)
    assert dict(Gcf.figs) == before
