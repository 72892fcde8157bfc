"""An export in the TensorFlow releases that older servers are built from, each installed anew."""

import subprocess
import sys

import pytest
from expected_outputs import assert_outputs, expected_outputs, loaded_outputs
from small_translators import SENTENCES

# Each release with the Pythons that it can be had for.
RELEASES = [
    release
    for release, newest_python in (("2.18", (3, 12)), ("2.20", (3, 13)))
    if sys.version_info[:2] <= newest_python
]


@pytest.mark.slow
@pytest.mark.parametrize("release", RELEASES)
def test_an_older_tensorflow_gives_the_same_translations(
    numbers_run, numbers_export, tmp_path, release
):
    subprocess.run([sys.executable, "-m", "venv", tmp_path], check=True)
    python = tmp_path / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, f"tensorflow-text=={release}.*"], check=True)
    expected = expected_outputs(numbers_run.load_translator(), SENTENCES)
    found = loaded_outputs(python, numbers_export, SENTENCES, expected)
    assert len(found) == 8
    for name, outputs in found.items():
        assert_outputs(outputs, expected[name.split("/")[1]])
