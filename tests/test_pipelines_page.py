"""The commands of docs/pipelines.md that need a C compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from test_docs import blocks

from export.session import ExportSession

ROOT = Path(__file__).parent.parent


def test_the_c_program_is_compiled_and_run_as_the_page_says(numbers_export, tmp_path):
    (block,) = (
        each for each in blocks(ROOT / "docs" / "pipelines.md") if "run_saved_model.c" in each.text
    )
    (tmp_path / "export").symlink_to(ROOT / "export")
    shutil.copytree(numbers_export.parent, tmp_path / "exports" / "demo")
    lines = ["one two", "", "three"]
    (tmp_path / "sentences.en").write_text("".join(f"{line}\n" for line in lines))
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-euc", block.text],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split("\n")
    start = printed.index("translation string 3") + 1
    expected = ExportSession(numbers_export).run("serving_default", text=lines)["translation"]
    assert [text.encode() for text in printed[start : start + 3]] == expected.tolist()
