"""Runs an export in a TensorFlow session, as TensorFlow Serving and the C API load it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

Outputs = dict[str, np.ndarray]


class ExportSession:
    """A SavedModel restored by its restore op into a session with one CPU, and no Python of it.

    Args:
        path: path of a version, the folder that holds `saved_model.pb`.

    Attributes:
        signatures: dict of each signature's name and its `SignatureDef`.

    Raises:
        Exception: whatever TensorFlow raises where the SavedModel cannot be loaded.
    """

    def __init__(self, path: str | Path) -> None:
        import tensorflow_text  # noqa: F401  registers the tokenizer's ops

        one_cpu = tf.compat.v1.ConfigProto(device_count={"CPU": 1, "GPU": 0})
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._session = tf.compat.v1.Session(graph=self._graph, config=one_cpu)
            meta_graph = tf.compat.v1.saved_model.load(self._session, ["serve"], str(path))
        self.signatures = signatures_of(meta_graph)

    def run(self, signature: str, **inputs: Sequence[str | bytes]) -> Outputs:
        """Runs a signature; may be called by several threads at once.

        Args:
            signature: str. Its name.
            **inputs: for each input of the signature the texts, one a row.

        Returns:
            A dict of each output's name and array.
        """
        definition = self.signatures[signature]
        feeds = {
            definition.inputs[name].name: np.array(
                [text.encode() if isinstance(text, str) else text for text in texts], dtype=object
            )
            for name, texts in inputs.items()
        }
        fetches = {name: tensor.name for name, tensor in definition.outputs.items()}
        return self._session.run(fetches, feeds)

    def close(self) -> None:
        """Frees the session and what it holds."""
        self._session.close()


def signatures_of(meta_graph: Any) -> dict[str, Any]:
    """The signatures of a MetaGraphDef: each one's name and its `SignatureDef`."""
    return {
        name: signature
        for name, signature in meta_graph.signature_def.items()
        if not name.startswith("__")  # TensorFlow's own, such as the one that initializes
    }
