"""Prints the ops that a release of TensorFlow Serving has, for the lists beside this file.

Run it by a Python with the TensorFlow and TensorFlow Text of that release, and name the folder
`tensorflow_text/python/ops` of the TensorFlow Text that the server itself pins, which may be older:

    python write_lists.py SERVER_VERSION PINNED_TEXT_VERSION PINNED_TEXT_FOLDER > tensorflow-X.Y.txt
"""

import re
import sys
from pathlib import Path

import tensorflow as tf
from tensorflow.python.framework import kernels, op_def_registry

# What no graph that translates holds: training, data sets, pictures, sound, queues, summaries,
# other devices, other processes, files, Python, and what only tests and graph rewriters use.
# Of the ops that read or write files those of the loader stay.
LEFT_OUT = re.compile(
    r"^_|Grad|Apply|Accumulat|Optimizer|Sdca|Backprop|Sampl|Candidate|Boosted|Tree|Skipgram|CTC"
    r"|Dataset|Iterator|Example|CSV|Csv|Proto|Record|Reader|Queue|Barrier|Stage|Unstage|MapPeek"
    r"|MapSize|MapClear|MapIncomplete|MapDefun|Stack$|StackV2|StackPush|StackPop|StackClose"
    r"|Image|Jpeg|Jxl|Png|Gif|Bmp|WebP|Wav|Audio|Mfcc|Spectrogram|RGB|HSV|Adjust|Glimpse|BoundingBox"
    r"|NonMax|Resize|CropAnd|ScaleAndTranslate|Conv(2D|3D|$)|Pool|BatchNorm|Dilation|LRN|Patches"
    r"|FFT|RNN|LSTM|GRU|Cudnn|Quant|Mkl|Kmeans|KMC2|Nearest|Isotonic"
    r"|Cholesky|Svd|Eig|Qr$|^Lu$|Tridiagonal|Bessel|Matrix(De|In|Lo|So|Sq|Tri|Exp|Sparse)|CSRSparse"
    r"|Summary|Stats|Debug|Dump|Calibration|ImportEvent|Xla|TPU|Collective|Nccl|Rpc|Remote|Send|Recv"
    r"|Distributed|Session|File(?!name)|Filespec|LoadAndRemap|GenerateVocab|TextFile|PyFunc|TfLite"
    r"|^(Save|Restore)(Slices?)?$|Immutable|Ref[A-Z]|Mutex|Delete|Dummy|TestAttr|KernelLabel|Stub"
    r"|^Old$|Sleep|Construction|ResourceCreate|ResourceUsing|CountUpTo|Scatter(Nd)?(Add|Sub|Mul"
    r"|Div|Max|Min|Update)$|NegTrain|Inplace|Copy|Experimental|Random|Rng|Multinomial"
    r"|TruncatedNormal|Stateful(Uniform|Standard)|NonDeterministic|SobolS|RemoteCall|PinnedMem"
    r"|TensorArray(V2)?$|TensorArray.*[a-z](V2)?$|Edit|Compress|Memory|Snapshot|^Batch(Function)?$"
    r"|Unbatch|Timestamp|Deadline|DestroyTemp|TemporaryV|^Fact$|Device|CheckPinned|Requantization"
)
KEPT = {
    *("DisableCopyOnRead", "ScatterNd", "StopGradient"),
    *("TensorListStack", "TensorScatterAdd", "TensorScatterUpdate"),
}


def attributes_by_op() -> dict[str, list[str]]:
    """The ops that have a kernel for CPUs in this process, and the names of their attributes."""
    found = {
        kernel.op
        for kernel in kernels.get_all_registered_kernels().kernel
        if kernel.device_type in ("CPU", "DEFAULT")
        and (kernel.op in KEPT or not LEFT_OUT.search(kernel.op))
    }
    definitions = {name: op_def_registry.get(name) for name in found}
    return {
        name: [attribute.name for attribute in definition.attr]
        for name, definition in definitions.items()
        if definition is not None
    }


def main(server: str, text: str, text_folder: str) -> None:
    tensorflow = attributes_by_op()
    import tensorflow_text  # noqa: F401  registers its ops

    with_text = attributes_by_op()
    # An op's registration lies in its library as text: its name, and `attribute: type`.
    libraries = b"".join(path.read_bytes() for path in sorted(Path(text_folder).glob("*.so")))
    print(
        f"# The ops of TensorFlow Serving {server}, each with the names of its attributes.\n"
        f"# Source: the op and kernel registries of the tensorflow {tf.__version__} wheel (CPU), "
        f"and the\n# op libraries of the tensorflow-text {text} wheel, which that server pins and "
        "links in:\n# SUPPORTED_TENSORFLOW_OPS of tensorflow_serving/model_servers/BUILD.\n"
        "# Left out is what no graph that translates holds. Written by write_lists.py."
    )
    for name, attributes in sorted(with_text.items()):
        words = [f"{name}\0", *(f"{attribute}:" for attribute in attributes)]
        if name in tensorflow or all(word.encode() in libraries for word in words):
            print(name, *attributes)


if __name__ == "__main__":
    main(*sys.argv[1:])
