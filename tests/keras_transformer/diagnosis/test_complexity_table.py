"""The table and the picture of table 1, from figures that are given."""

import copy

import pytest

from keras_transformer import InputError
from keras_transformer.command_line import command_line
from keras_transformer.diagnosis import complexity
from keras_transformer.diagnosis import complexity_table as tables
from keras_transformer.diagnosis.complexity_layers import LAYER_KINDS
from keras_transformer.diagnosis.complexity_table import (
    check_picture_path,
    complexity_table,
    plot_complexity,
)
from trainers import study_commands


def layer(name, exponent):
    kind = LAYER_KINDS[name]
    path = {"paper": kind.path, "lengths": [8, 16], "measured": [2, 4], "expected": [2, 5]}
    return {
        "time": kind.time,
        "seconds_by_length": [0.001, 0.002**exponent],
        "seconds_by_width": [0.001, 0.003],
        "peak_bytes_by_length": [2**20, 3 * 2**20],
        "exponents": {
            "seconds_by_length": {"paper": 2, "counted": 1.91, "measured": 1.872},
            "seconds_by_width": {"paper": 1, "counted": 1.36, "measured": 1.444},
            "peak_bytes_by_length": {"expected": 1, "measured": 1.234},
        },
        "sequential_operations": {"paper": "O(1)", "lengths": [8, 16], "measured": [4, None]},
        "path_length": path,
        "dilated_path_length": {**path, "paper": "O(log_k(n))"},
    }


@pytest.fixture
def result():
    return {
        "settings": {
            **{"lengths": [1024, 2048], "widths": [64, 128], "length": 2048, "width": 64},
            **{"window": 128, "chunk": 256, "kernel": 3, "path_window": 8, "path_kernel": 5},
            **{"repeats": 5, "backward": False, "cores": 2, "tensorflow": "2.21.0"},
        },
        "layers": {name: layer(name, 1) for name in LAYER_KINDS},
    }


def cells(table, name):
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in table.split("\n")
        if line.startswith(f"| {name} ")
    ]


def test_the_table_shows_each_figure_beside_the_papers(result):
    table = complexity_table(result)
    cost, reach = cells(table, "self-attention")
    assert cost[1:] == ["O(n^2 d)", "2", "1.91", "1.87", "1", "1.36", "1.44", "1", "1.23"]
    assert reach[1:] == ["O(1)", "a loop", "O(1)", "2, 4", "2, 5"]
    assert cells(table, "  dilated")[0][3:] == ["O(log_k(n))", "2, 4", "2, 5"]
    assert cells(table, "1,024")[0][1] == "1.0 ms, 1.0 MiB"
    assert "Complexity per layer, forward: exponents of n from 1,024 to 2,048" in table
    assert "at n = 8, 16 (r = 8, k = 5)" in table


def test_rows_of_a_table_are_equally_long(result):
    rows = [line for line in complexity_table(result).split("\n") if line.startswith("|")]
    assert len({len(line) for line in rows}) == 3
    assert {line.count("|") for line in rows} == {11, 7, 8}


def without_memory(result):
    result = copy.deepcopy(result)
    for figures in result["layers"].values():
        figures["peak_bytes_by_length"] = None
        figures["exponents"]["peak_bytes_by_length"]["measured"] = None
    result["settings"]["backward"] = True
    return result


def test_memory_that_was_not_measured_is_said_to_be_unknown(result):
    table = complexity_table(without_memory(result))
    assert cells(table, "recurrent")[0][-1] == "unknown"
    assert cells(table, "2,048")[0][1] == "2.0 ms"
    assert "forward and backward" in table


def test_the_picture_is_drawn_with_and_without_memory(result, tmp_path):
    plot_complexity(result, tmp_path / "all.png")
    plot_complexity(without_memory(result), tmp_path / "times.png")
    whole, times = (tmp_path / name for name in ("all.png", "times.png"))
    assert whole.read_bytes().startswith(b"\x89PNG")
    assert times.stat().st_size < whole.stat().st_size < 150_000


def test_a_place_where_no_picture_can_be_is_refused(result, tmp_path):
    check_picture_path(tmp_path / "new" / "folder" / "all.svg")
    check_picture_path(tmp_path / "all.png")
    assert not list(tmp_path.iterdir()), "a check leaves nothing behind"
    plot_complexity(result, tmp_path / "new" / "folder" / "all.svg")
    assert (tmp_path / "new" / "folder" / "all.svg").is_file()
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    for name in ("all", "all.jpeg2", "file/all.png", "file/new/all.png", "folder.png"):
        for refuse in (check_picture_path, lambda path: plot_complexity(result, path)):
            with pytest.raises(InputError, match="Received: .*" + name):
                refuse(tmp_path / name)


def test_an_ending_may_be_of_large_letters(result, tmp_path):
    plot_complexity(result, tmp_path / "all.PNG")
    assert (tmp_path / "all.PNG").read_bytes().startswith(b"\x89PNG")


def arguments(*words):
    commands = {"complexity": study_commands.complexity}
    return command_line(commands).parse_args(["complexity", *map(str, words)])


def test_the_command_checks_first_and_prints_before_it_draws(result, tmp_path, monkeypatch, capsys):
    output = tmp_path / "new" / "all.png"
    with pytest.raises(InputError, match="lengths must be"):
        study_commands.complexity(arguments("--lengths", "8,4", "--output", output))
    assert not list(tmp_path.iterdir())
    folder = tmp_path / "folder.png"
    folder.mkdir()
    with monkeypatch.context() as patch:
        patch.setattr(complexity, "measure_complexity", None)
        with pytest.raises(InputError, match="must be a file that can be written"):
            study_commands.complexity(arguments("--output", folder))
    monkeypatch.setattr(complexity, "measure_complexity", lambda *_, **__: result)

    def full(*arguments):
        raise InputError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(tables, "plot_complexity", full)
        with pytest.raises(InputError, match="no space left"):
            study_commands.complexity(arguments("--output", output))
    assert "Complexity per layer" in capsys.readouterr().out
    assert study_commands.complexity(arguments("--output", output)) == 0
    assert output.is_file()
