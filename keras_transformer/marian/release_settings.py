"""What the settings of an original Marian release mean here.

The keys are those that Marian 1.7 to 1.12 write into a model (`special:model.yml`) and into the
`decoder.yml` beside it, and those of `marian-decoder`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from keras_transformer.errors import InputError
from keras_transformer.marian.settings import Settings

_ACTIVATIONS = (("relu", "relu"), ("swish", "swish"), ("gelu", "gelu_sigmoid"))

# Of recurrent models and of average attention, guided alignment, BERT's masks, and how a model was
# initialized: without influence on the translations of a transformer with self-attention.
_MODEL_SKIPPED = (
    "version", "skip", "dim-rnn", "enc-type", "enc-cell", "enc-cell-depth", "dec-cell",
    "dec-cell-base-depth", "dec-cell-high-depth", "transformer-dim-aan", "transformer-aan-depth",
    "transformer-aan-activation", "transformer-aan-nogate", "transformer-guided-alignment-layer",
    "transformer-depth-scaling", "bert-train-type-embeddings", "bert-type-vocab-size",
)  # fmt: skip

_MODEL_EXPECTED: dict[str, tuple] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": ("self-attention",),
    "transformer-no-projection": (False,),
    "transformer-rnn-projection": (False,),
    "transformer-train-position-embeddings": (False,),
    "transformer-tied-layers": ([], None),
    "transformer-pool": (False,),
    "transformer-ffn-depth": (2,),
    "transformer-decoder-ffn-depth": (0, 2),
    # Letters other than d, the dropout of training, change the network.
    "transformer-postprocess-emb": ("d", ""),
    "layer-normalization": (False,),
    "right-left": (False,),
    "input-types": ([], ["sequence", "sequence"], None),
    "special-vocab": ([], None),
    "output-omit-bias": (False,),
    "ulr": (False,),
    "ulr-dim-emb": (0,),
    "ulr-trainable-transformation": (False,),
    "factors-dim-emb": (0,),
    "factors-combine": ("sum",),
    "lemma-dim-emb": (0,),
    "lemma-dependency": ("", None),
    "embedding-fix-src": (False,),
    "embedding-fix-trg": (False,),
}

# By transformer-preprocess, -postprocess and -postprocess-top: n is LayerNorm, a the residual.
_NORMS = {("", "dan", ""): "post", ("n", "da", "n"): "pre"}

# How the decoder batches, computes, logs and prints. max-length-factor ends a search that runs
# away, as maximum_extra_length does here; the weight of a single model orders nothing.
_DECODER_SKIPPED = (
    "alignment", "authors", "build-info", "cite", "clip-gemm", "config", "cpu-threads", "devices",
    "fp16", "gemm-type", "input", "int16", "interpolate-env-vars", "log",
    "log-level", "log-time-zone", "max-length-crop", "max-length-factor", "maxi-batch",
    "maxi-batch-sort", "mini-batch", "mini-batch-words", "model-mmap", "n-best",
    "n-best-feature", "no-spm-decode", "no-spm-encode", "num-devices", "optimize", "output",
    "port", "precision", "quiet", "quiet-translation", "relative-paths", "seed",
    "stat-freq", "tsv", "tsv-fields", "version", "weights", "word-scores", "workspace",
)  # fmt: skip

_DECODER_EXPECTED: dict[str, tuple] = {
    "word-penalty": (0,),
    "shortlist": ([], None),
    "best-deep": (False,),
    "ignore-model-config": (False,),
    "output-sampling": ([], None, False),
    "output-approx-knn": ([], None),
    "xml-input": (False,),
    "force-decode": (False,),
    "skip-cost": (False,),
    "use-legacy-batching": (False,),
    "input-types": ([], ["sequence", "sequence"], None),
}


@dataclasses.dataclass(frozen=True)
class ReleaseArchitecture:
    """What a model's embedded settings say.

    Attributes:
        sizes: pair of int, the words of source and target.
        ties_source: bool. Whether source and target have one embedding, `Wemb`.
        ties_output: bool. Whether the output projection is the target embedding.
        model: dict of fields of `TransformerConfig` other than the vocabularies and `tying`.
    """

    sizes: tuple[int, int]
    ties_source: bool
    ties_output: bool
    model: dict[str, Any]

    @property
    def tying(self) -> str:
        """The config's `tying`."""
        if not self.ties_output:
            return "none"
        return "three-way" if self.ties_source else "output"


def read_release_architecture(settings: Settings) -> ReleaseArchitecture:
    """Reads `special:model.yml`.

    Raises:
        InputError: for each key that is unknown, or has a value that is not implemented.
    """
    settings.expect(_MODEL_EXPECTED)
    settings.skip(_MODEL_SKIPPED)
    sizes = settings.take("dim-vocabs", list)
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise settings.error("dim-vocabs", "two whole numbers above 0")
    ties_all = settings.take("tied-embeddings-all", bool, False)
    ties_source = settings.take("tied-embeddings-src", bool, False) or ties_all
    ties_output = settings.take("tied-embeddings", bool, False) or ties_all
    if ties_source and sizes[0] != sizes[1]:
        raise settings.error("dim-vocabs", "one size twice where the embeddings are tied")
    operations = tuple(
        settings.take(f"transformer-{name}", str, "")
        for name in ("preprocess", "postprocess", "postprocess-top")
    )
    # d is dropout, which ends with the training.
    norm = _NORMS.get(("n" if "n" in operations[0] else "", *operations[1:]))
    if norm is None or operations[0] not in ("", "d", "n", "nd"):
        raise InputError(
            f"{settings.file}: transformer-preprocess, transformer-postprocess and "
            "transformer-postprocess-top must be '', 'dan', '' or 'n', 'da', 'n'. "
            f"Received: {', '.join(map(repr, operations))}"
        )
    d_ff = settings.take("transformer-dim-ffn", int, at_least=1)
    settings.expect({"transformer-decoder-dim-ffn": (0, d_ff)})
    model = {
        "num_encoder_layers": settings.take("enc-depth", int, at_least=1),
        "num_decoder_layers": settings.take("dec-depth", int, at_least=1),
        "d_model": settings.take("dim-emb", int, at_least=1),
        "d_ff": d_ff,
        "num_heads": settings.take("transformer-heads", int, at_least=1),
        "norm": norm,
        # As CTranslate2 and Hugging Face have it for Marian's models.
        "layer_norm_epsilon": 1e-5,
        "positions": "sinusoidal-halves",
        "activation": settings.choose("transformer-ffn-activation", _ACTIVATIONS, "swish"),
        "attention_bias": True,
        "output_bias": True,
    }
    settings.finish()
    return ReleaseArchitecture(tuple(sizes), ties_source, ties_output, model)


@dataclasses.dataclass(frozen=True)
class Decoder:
    """What `decoder.yml` says.

    Attributes:
        model: str, the path of the model.
        vocabularies: list of two paths.
        decoding: dict of keys of the recipe's section `decoding`.
        allows_unknown: bool. Whether `<unk>` may be generated.
    """

    model: str
    vocabularies: list[str]
    decoding: dict[str, Any]
    allows_unknown: bool


def read_decoder(settings: Settings) -> Decoder:
    """Reads `decoder.yml`.

    What it does not say is as in marian-decoder: 12 beams, no normalization by length, sources of
    up to 1,000 words. A score is log p / n^normalize where n counts the end token, a hypothesis
    ends when its end token is among the best of the beam, and at the limit it simply ends
    (`translator/history.h` and `translator/beam_search.cpp` of Marian).

    Raises:
        InputError: for each key that is unknown, or has a value that is not implemented.
    """
    settings.expect(_DECODER_EXPECTED)
    settings.skip(_DECODER_SKIPPED)
    models = settings.take("models", list)
    if len(models) != 1:
        raise settings.error("models", "a list of one model: ensembles are not implemented")
    vocabularies = [str(path) for path in settings.take("vocabs", list)]
    if len(vocabularies) != 2 or not all(path.endswith((".yml", ".yaml")) for path in vocabularies):
        raise settings.error("vocabs", "a list of two .yml files, of source and target")
    normalize = settings.get("normalize", 0)
    if isinstance(normalize, bool):  # as the bare option, which means 1
        normalize = int(normalize)
    if not isinstance(normalize, int | float) or normalize < 0:
        raise settings.error("normalize", "a number of at least 0")
    decoding = {
        "beam_size": settings.take("beam-size", int, 12, at_least=1),
        "alpha": float(normalize),
        "length_penalty": "power",
        "maximum_source_length": settings.take("max-length", int, 1000, at_least=2) - 1,
        "early_stopping": "full_beam",
        "ends_within": "beam",
        "forced_end": "free",
    }
    allows_unknown = settings.take("allow-unk", bool, False)
    settings.finish()
    return Decoder(str(models[0]), vocabularies, decoding, allows_unknown)
