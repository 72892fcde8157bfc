import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  registers the tokenizer's ops
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.framework import kernels

from export.operations import ALLOWED_OPERATIONS


@pytest.mark.parametrize("name", sorted(ALLOWED_OPERATIONS))
def test_an_allowed_op_has_a_kernel_for_cpus(name):
    found = {kernel.device_type for kernel in kernels.get_registered_kernels_for_op(name).kernel}
    assert found & {"CPU", "DEFAULT"}


@pytest.mark.parametrize(
    "name",
    [
        *("PyFunc", "PyFuncStateless", "EagerPyFunc"),  # need this Python process
        *("XlaLaunch", "_XlaRun", "XlaHostCompute"),  # need XLA
        *("HashTableV2", "MutableHashTableV2", "LookupTableFindV2"),
        *("ReadFile", "WriteFile"),
        *("WordpieceTokenizeWithOffsets", "FastWordpieceTokenizeWithOffsets"),
    ],
)
def test_what_a_server_lacks_or_must_not_do_is_not_allowed(name):
    assert name not in ALLOWED_OPERATIONS


def test_an_export_tokenizes_and_searches_with_allowed_ops(numbers_export):
    model = saved_model_pb2.SavedModel.FromString((numbers_export / "saved_model.pb").read_bytes())
    (meta_graph,) = model.meta_graphs
    library = meta_graph.graph_def.library.function
    found = {node.op for function in library for node in function.node_def}
    assert found > {"SentencepieceTokenizeOp", "SentencepieceDetokenizeOp", "TopKV2"}
    assert {"While", "StatelessWhile"} & found
    found |= {node.op for node in meta_graph.graph_def.node}
    found -= {function.signature.name for function in library}
    assert found <= ALLOWED_OPERATIONS
    assert tf.version.VERSION.startswith(meta_graph.meta_info_def.tensorflow_version[:4])
