"""Sets of tensorflow-datasets: downloaded once, read in stretches, faults in one line."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from keras_transformer.errors import InputError
from trainers.text_files import SHIPPED_FOLDER
from trainers.tfds_corpus import TfdsSet


class TinyTestTranslate(tfds.core.GeneratorBasedBuilder):
    """A translation set with a configuration a pair of languages, as tfds' own ones."""

    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [
        tfds.core.BuilderConfig(name="de-en"),
        tfds.core.BuilderConfig(name="broken"),
    ]
    PAIRS = {"train": [(f"Satz {i}", f"sentence {i}") for i in range(5)]}
    PAIRS["test"] = [("Grüße\u2028aus \U0001f600", "greetings\r\nfrom\n"), ("", "empty")]
    generated = 0

    def _info(self):
        return self.dataset_info_from_configs(
            features=tfds.features.FeaturesDict(
                {"de": tfds.features.Text(), "en": tfds.features.Text(), "year": np.int32}
            )
            if self.builder_config.name == "broken"
            else tfds.features.Translation(["de", "en"])
        )

    def _split_generators(self, dl_manager):
        if self.builder_config.name == "broken":
            raise OSError("the server\nis down")
        return {split: self._generate_examples(split) for split in self.PAIRS}

    def _generate_examples(self, split):
        TinyTestTranslate.generated += 1
        for i, (german, english) in enumerate(self.PAIRS[split]):
            yield i, {"de": german, "en": english}


def one_line(error):
    message = str(error.value)
    assert "\n" not in message and "Received: " in message
    return message


def test_tfds_set_by_name_is_prepared_once_and_read(tmp_path, capfd):
    TinyTestTranslate.generated = 0
    corpus = TfdsSet("tiny_test_translate/de-en", "train", "en", "de", data_dir=tmp_path).read()
    assert TinyTestTranslate.generated == 2
    assert sorted(zip(corpus.sources, corpus.targets, strict=True)) == [
        (f"sentence {i}", f"Satz {i}") for i in range(5)
    ]
    again = TfdsSet("tiny_test_translate/de-en", "train", "de", "en", data_dir=str(tmp_path)).read()
    assert (again.sources, again.targets) == (corpus.targets, corpus.sources)
    part = TfdsSet("tiny_test_translate/de-en", "train[:2]", "en", "de", data_dir=tmp_path).read()
    assert part.sources == corpus.sources[:2]
    odd = TfdsSet("tiny_test_translate/de-en", "test", "de", "en", data_dir=tmp_path).read()
    assert sorted(zip(odd.sources, odd.targets, strict=True)) == [
        ("", "empty"),
        ("Grüße aus \U0001f600", "greetings  from"),
    ]
    assert TinyTestTranslate.generated == 2
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "split", "languages", "expected"),
    [
        ("no_such_set_translate/de-en", "train", "de en", "no_such_set_translate/de-en"),
        ("tiny_test_translate/fr-en", "train", "fr en", "fr-en"),
        ("not a name!", "train", "de en", "not a name!"),
        ("tiny_test_translate/de-en", "training", "de en", "test, train"),
        ("tiny_test_translate/de-en", "train", "de fr", "de, en. Received: 'fr'"),
        ("tiny_test_translate/de-en", "train", "de de", "'de' twice"),
        ("tiny_test_translate/broken", "train", "de year", "de, en. Received: 'year'"),
        ("tiny_test_translate/broken", "train", "de en", "OSError: "),
    ],
)
def test_tfds_faults_are_one_clear_line(tmp_path, capfd, name, split, languages, expected):
    with pytest.raises(InputError) as error:
        TfdsSet(name, split, *languages.split(), data_dir=tmp_path).read()
    assert expected in one_line(error)
    assert capfd.readouterr().out == ""


def test_the_papers_sets_are_known_to_tfds(tmp_path):
    for pair in ("de-en", "fr-en"):
        builder = tfds.builder(f"wmt14_translate/{pair}", data_dir=tmp_path)
        assert set(builder.info.features) == set(pair.split("-"))
        # What preparing it reads before it downloads; needs importlib_resources, which
        # tensorflow-datasets 4.9.10 uses but does not ask for.
        assert builder.code_path is not None
        assert builder.info.as_proto.name == "wmt14_translate"


def test_tfds_is_imported_only_where_it_is_used():
    code = (
        "import sys\n"
        "from trainers.recipe import load_recipe\n"
        "from trainers.splits import read_split\n"
        "data = load_recipe('tatoeba-en-de-small.yaml').data\n"
        "assert len(read_split(data, 'test')) == 1000\n"
        "assert 'tensorflow_datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=SHIPPED_FOLDER.parents[1])


def test_a_missing_tfds_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InputError, match="pip install tensorflow-datasets"):
        TfdsSet("tiny_test_translate/de-en", "train", "en", "de").check()


def test_a_check_downloads_nothing(tmp_path):
    TinyTestTranslate.generated = 0
    unprepared = TfdsSet("tiny_test_translate/de-en", "training", "en", "de", data_dir=tmp_path)
    unprepared.check()  # which splits there are is known once it is prepared
    with pytest.raises(InputError, match="de, en. Received: 'fr'"):
        TfdsSet("tiny_test_translate/de-en", "train", "en", "fr", data_dir=tmp_path).check()
    assert TinyTestTranslate.generated == 0 and list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="test, train"):
        unprepared.count()
    with pytest.raises(InputError, match="test, train"):
        unprepared.check()


def test_a_set_comes_in_stretches_and_is_counted(tmp_path):
    part = TfdsSet("tiny_test_translate/de-en", "train[1:]", "en", "de", data_dir=tmp_path)
    stretches = list(part.stretches(pairs=3))
    assert [len(sources) for sources, _ in stretches] == [3, 1]
    assert part.count() == 4
    corpus = part.read()
    assert corpus.sources == stretches[0][0] + stretches[1][0]
    assert corpus.targets == stretches[0][1] + stretches[1][1]
    assert corpus.name == "tiny_test_translate/de-en, split train[1:]"


def test_a_set_is_known_by_its_files_and_split(tmp_path):
    def prints(split):
        found = TfdsSet("tiny_test_translate/de-en", split, "en", "de", data_dir=tmp_path)
        return found.fingerprints()

    (name,) = prints("train")
    assert name == "tiny_test_translate/de-en/1.0.0, split train"
    assert prints("train") == prints("train")
    splits = ("train", "test", "train[:2]", "train[:3]")
    assert len({print_ for split in splits for print_ in prints(split).values()}) == 4
    before = prints("train")
    (file,) = tmp_path.rglob("*train.tfrecord*")
    data = bytearray(file.read_bytes())
    data[-20] ^= 1
    file.write_bytes(data)
    assert prints("train") != before


@pytest.mark.parametrize("split", ["train", "train[1:]", "train[:60%]+test"])
def test_the_files_hold_what_tensorflow_datasets_reads(tmp_path, split):
    name = "tiny_test_translate/de-en"
    corpus = TfdsSet(name, split, "en", "de", data_dir=tmp_path).read()
    dataset = tfds.load(name, split=split, data_dir=tmp_path, shuffle_files=False)
    expected = [(pair["en"].decode(), pair["de"].decode()) for pair in dataset.as_numpy_iterator()]
    found = list(zip(corpus.sources, corpus.targets, strict=True))
    assert [en for en, _ in found] == [en.strip().replace("\r\n", "  ") for en, _ in expected]
    assert [de for _, de in found] == [de.replace("\u2028", " ") for _, de in expected]


def test_a_split_without_pairs_is_refused(tmp_path):
    empty = TfdsSet("tiny_test_translate/de-en", "train[2:2]", "en", "de", data_dir=tmp_path)
    with pytest.raises(InputError, match="expected a split with pairs. Received: none$"):
        empty.read()


def test_files_of_another_kind_are_refused(tmp_path, monkeypatch):
    found = TfdsSet("tiny_test_translate/de-en", "train", "en", "de", data_dir=tmp_path)
    found.count()
    info = type(found._builder.info)
    monkeypatch.setattr(info, "file_format", tfds.core.FileFormat.RIEGELI)
    with pytest.raises(InputError, match="prepared as tfrecord files. Received: riegeli$"):
        found.read()
