"""What the command line does before TensorFlow is imported: it keeps TensorFlow's notes off."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def is_command_line() -> bool:
    """Whether this is `keras-transformer`, `python -m keras_transformer` or `... export.beam`.

    Example:

    >>> is_command_line()
    False
    """
    program = Path(sys.argv[0])
    if program.name == "keras-transformer" or program.parts[-2:] == ("export", "beam.py"):
        return True
    # While `python -m` imports the package, argv[0] is still "-m".
    return sys.argv[0] == "-m" and "keras_transformer" in sys.orig_argv


def import_tensorflow_quietly() -> None:
    """Imports TensorFlow with its start-up notes, which it writes past Python, thrown away.

    A command line shows results and errors of its own, not which instructions TensorFlow was
    compiled for. `TF_CPP_MIN_LOG_LEVEL`, where it is set to let some through, is left as it is.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "3") != "3":
        return
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    sys.stderr.flush()
    stderr = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        import tensorflow
        import tensorflow_text  # noqa: F401

        # Such as that the loader which servers use is deprecated in Python.
        tensorflow.get_logger().setLevel("ERROR")
    except KeyboardInterrupt:
        os.write(stderr, b"keras-transformer: interrupted\n")
        os._exit(130)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(nowhere)
