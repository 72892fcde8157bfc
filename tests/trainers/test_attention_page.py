"""One sentence's page or picture: of which translation, and what is refused."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from keras_transformer.errors import InputError
from trainers import attention_page
from trainers.attention_page import write_attention, write_file
from trainers.run import RunDirectory


def data_of(path):
    (text,) = re.findall(
        r"<script type='application/json' id='page-data'>(.*?)</script>", path.read_text("utf-8")
    )
    return json.loads(text)


def test_it_shows_every_layer_and_head_of_the_models_own_translation(untrained_run, tmp_path):
    run = RunDirectory(shutil.copytree(untrained_run.path, tmp_path / "run"))
    path = write_attention(run.path, "one two three")
    assert path == run.path / "attention.html"
    (sentence,) = data_of(path)["explorer"]["sentences"]
    found = run.load_translator().translate(["one two three"])[0][0].text
    assert sentence["texts"] == {"source": "one two three", "translation": found}
    config = run.load_model().config
    for kind, layers in sentence["weights"].items():
        shape = (1, config.num_heads, len(sentence["rows"][kind]), len(sentence["columns"][kind]))
        assert np.array(layers).shape == shape


def test_a_given_target_is_what_the_decoder_reads(untrained_run, tmp_path):
    path = write_attention(untrained_run.path, "one", "acht zwei", tmp_path / "page.htm")
    (sentence,) = data_of(path)["explorer"]["sentences"]
    assert sentence["columns"]["decoder"] == ["<s>", "▁acht", "▁zwei"]
    assert sentence["texts"]["target"] == "acht zwei"


def test_a_name_of_a_picture_gives_a_picture(untrained_run, tmp_path):
    path = write_attention(untrained_run.path, "one $two$", output=tmp_path / "page.PNG")
    image = imread(path, format="png")
    assert image.ndim == 3 and image[..., :3].std() > 0.05


@pytest.mark.slow
def test_a_run_in_training_shows_its_last_checkpoint(numbers_run, tmp_path):
    run = RunDirectory(shutil.copytree(numbers_run.path, tmp_path / "run"))
    run.model_path.unlink()
    assert write_attention(run.path, "one two").exists()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("", None, "--source must be text with words. Received: ''"),
        (" \t", None, "--source must be text with words"),
        (
            "one " * 41,
            None,
            "--source must have at most 40 pieces to be drawn. Received: 41 pieces",
        ),
        ("one", "", "--target must be text with words"),
        ("one", "eins " * 300, "--target must have at most 46 pieces"),
    ],
)
def test_what_cannot_be_drawn_is_refused(untrained_run, tmp_path, source, target, message):
    with pytest.raises(InputError, match=re.escape(message)) as error:
        write_attention(untrained_run.path, source, target, tmp_path / "page.html")
    assert "\n" not in str(error.value) and not list(tmp_path.iterdir())


def test_what_is_no_run_or_no_place_is_refused(monkeypatch, untrained_run, tmp_path):
    with pytest.raises(InputError, match=r"must hold a recipe.yaml. Received: .*none"):
        write_attention(tmp_path / "none", "one")
    assert not (tmp_path / "none").exists()
    monkeypatch.setattr(attention_page, "load_translator", None)  # refused before any work
    (tmp_path / "folder.png").mkdir()
    for output in (tmp_path / "no" / "page.html", tmp_path / "folder.png"):
        with pytest.raises(InputError, match="--output must be a file that can be written"):
            write_attention(untrained_run.path, "one", output=output)
    for output in (".", "/", "maps.pdf", "maps.svg", "maps"):
        with pytest.raises(InputError, match=r"must end in \.html or \.png\. Received: "):
            write_attention(untrained_run.path, "one", output=output)


def test_a_file_that_cannot_be_written_is_refused_and_a_long_name_is_none(tmp_path):
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "x.html", Path("."), Path("/"), Path("a\0b")):
        with pytest.raises(InputError, match="--output must be a file that can be written"):
            write_file(path, b"page")
    assert write_file(tmp_path / ("x" * 250 + ".html"), b"page").read_bytes() == b"page"
    assert len(list(tmp_path.iterdir())) == 2
