"""The lists of ops that servers have."""

import re

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's ops
from planted_exports import read_graph
from tensorflow.python.framework import kernels, op_def_registry

from export.checking import operations
from export.checking.operations import fault_of, is_file_operation, server_operations

LISTS = server_operations()
ALL = sorted({name for found in LISTS.values() for name in found})


def test_there_is_a_list_for_the_oldest_and_the_newest_server():
    assert list(LISTS) == ["2.18", "2.20"]
    assert all(len(found) > 400 for found in LISTS.values())


@pytest.mark.parametrize("version", LISTS)
def test_a_list_says_where_it_is_from(version):
    text = (operations._FOLDER / f"tensorflow-{version}.txt").read_text()
    assert re.search(rf"^# Source: .* the tensorflow {version}\.\d wheel", text, re.M)
    assert re.search(r"op libraries of the tensorflow-text \d+\.\d+\.\d wheel", text)


@pytest.mark.parametrize("name", ALL)
def test_an_op_of_the_lists_has_a_kernel_for_cpus_and_these_attributes(name):
    found = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(name).kernel}
    assert found & {"CPU", "DEFAULT"}
    # What a newer TensorFlow added is what an older server does not know.
    attributes = {attribute.name for attribute in op_def_registry.get(name).attr}
    for listed in LISTS.values():
        assert listed.get(name, frozenset()) <= attributes


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        *((name, "needs the Python process") for name in ("PyFunc", "EagerPyFunc")),
        *((name, "needs XLA") for name in ("XlaLaunch", "_XlaRun", "XlaCallModule", "XlaDot")),
        *((name, "reads or writes files") for name in ("ReadFile", "WriteFile", "MatchingFiles")),
        ("InitializeTableFromTextFileV2", "reads or writes files"),
        ("TextLineDataset", "reads or writes files"),
        *((name, "needs other hosts") for name in ("TPUReplicate", "CollectiveReduceV2", "_Send")),
        ("MadeUp", "is not on the list for TensorFlow 2.18"),
        ("TFText>RoundRobinTrim", "is not on the list for TensorFlow 2.18"),
    ],
)
def test_an_op_that_a_server_lacks_or_must_not_run(name, reason):
    assert fault_of(name, {}).startswith(f"{name} {reason}")


def test_attributes_that_an_older_server_does_not_know():
    assert fault_of("TensorListGetItem", {"element_dtype": 1, "_output_shapes": 1}) is None
    fault = fault_of("TensorListGetItem", {"element_dtype": 1, "Tshape": 3})
    assert fault == "TensorListGetItem has no attribute Tshape in TensorFlow 2.18"


def test_the_loaders_own_file_ops_are_no_faults():
    for name in ("RestoreV2", "SaveV2", "ShardedFilename", "MergeV2Checkpoints"):
        assert not is_file_operation(name) and fault_of(name, {}) is None


def test_an_export_tokenizes_and_searches_with_ops_of_the_lists(numbers_export):
    meta_graph = read_graph(numbers_export)
    library = meta_graph.graph_def.library.function
    found = {node.op for function in library for node in function.node_def}
    assert found > {"SentencepieceTokenizeOp", "SentencepieceDetokenizeOp", "TopKV2"}
    assert {"While", "StatelessWhile"} & found
    found |= {node.op for node in meta_graph.graph_def.node}
    found -= {function.signature.name for function in library}
    for listed in LISTS.values():
        assert found <= set(listed)
    assert tf.version.VERSION.startswith(meta_graph.meta_info_def.tensorflow_version[:4])
