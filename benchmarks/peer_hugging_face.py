"""Times Hugging Face's MarianMTModel on the work that `keras-transformer benchmark` times.

It imports torch and transformers and nothing of this project, so that it runs in an environment
of its own, where no second framework competes for threads or memory. One JSON object on one line
of stdout is the result; everything else goes to stderr.

    python peer_hugging_face.py train --dtype bfloat16
    python peer_hugging_face.py decode --batch 16 --beam-size 4
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import platform
import statistics
import time

import torch
import transformers
from transformers import GenerationConfig, MarianConfig, MarianMTModel

PAD, BOS, EOS, FIRST_WORD = 0, 1, 2, 4
SEED = 1
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def build_model(arguments: argparse.Namespace, max_length: int) -> MarianMTModel:
    """A MarianMTModel of the asked shape with random weights: post-norm, sinusoids, one
    embedding matrix for source, target and output, as in the paper."""
    config = MarianConfig(
        vocab_size=arguments.vocabulary_size,
        d_model=arguments.d_model,
        encoder_layers=arguments.layers,
        decoder_layers=arguments.layers,
        encoder_attention_heads=arguments.heads,
        decoder_attention_heads=arguments.heads,
        encoder_ffn_dim=arguments.d_ff,
        decoder_ffn_dim=arguments.d_ff,
        activation_function="relu",
        dropout=0.1,
        attention_dropout=0.0,
        activation_dropout=0.0,
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        max_position_embeddings=max_length,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        forced_eos_token_id=None,
        # PyTorch's fused attention; the library's other choice on a CPU is slower.
        attn_implementation="sdpa",
    )
    return MarianMTModel(config)


def random_ids(rows: int, length: int, vocabulary_size: int) -> torch.Tensor:
    """int64 [rows, length], words only: no padding, no special id."""
    return torch.randint(FIRST_WORD, vocabulary_size, (rows, length))


def train(arguments: argparse.Namespace) -> dict:
    """Median time of an optimizer step of a plain PyTorch loop.

    bfloat16 means autocast over float32 weights, the usual mixed precision. Nothing is padded,
    so no mask is passed, which spares the library the work of looking at one.
    """
    model = build_model(arguments, max_length=arguments.length).train()
    if arguments.compile:
        # In place, so that the model keeps its class; the first warm-up step pays for it.
        model.compile()
    optimizer = torch.optim.Adam(
        model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    mixed = arguments.dtype == "bfloat16"

    def step() -> tuple[float, float]:
        """Seconds and loss of one update; making the batch is not timed."""
        source = random_ids(arguments.batch, arguments.length, arguments.vocabulary_size)
        labels = random_ids(arguments.batch, arguments.length, arguments.vocabulary_size)
        target = torch.full_like(labels, BOS)
        target[:, 1:] = labels[:, :-1]
        start = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16) if mixed else contextlib.nullcontext():
            logits = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits
        # [batch, length, V] -> [batch * length, V]
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), label_smoothing=0.1
        )
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        loss_value = loss.item()
        return time.perf_counter() - start, loss_value

    for _ in range(arguments.warm_up):
        step()
    timings = [step() for _ in range(arguments.steps)]
    loss = timings[-1][1]
    if not math.isfinite(loss):
        raise SystemExit(f"the loss became {loss}: these timings measure nothing")
    seconds = [timing[0] for timing in timings]
    median = statistics.median(seconds)
    return {
        "target_tokens_per_second": round(arguments.batch * arguments.length / median, 1),
        "seconds_per_step": round(median, 5),
        "fastest_step": round(min(seconds), 5),
        "slowest_step": round(max(seconds), 5),
        "loss": round(loss, 4),
        "parameters": count_parameters(model),
    }


def decode(arguments: argparse.Namespace) -> dict:
    """Median time of `generate` with beam search, key/value cache and a fixed number of steps.

    The end token is forbidden until the last step, so that random weights cannot end a search
    early. bfloat16 means bfloat16 weights.
    """
    # One position more than the new tokens: the start token's.
    max_length = max(arguments.source_length, arguments.new_tokens + 1)
    model = build_model(arguments, max_length).to(DTYPES[arguments.dtype]).eval()
    source = random_ids(arguments.batch, arguments.source_length, arguments.vocabulary_size)
    generation = GenerationConfig(
        num_beams=arguments.beam_size,
        min_new_tokens=arguments.new_tokens,
        max_new_tokens=arguments.new_tokens,
        do_sample=False,
        use_cache=True,
        length_penalty=0.6,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
    )

    def run() -> float:
        start = time.perf_counter()
        # A mask of ones: without one, the library would search the ids for padding.
        ids = model.generate(
            source, attention_mask=torch.ones_like(source), generation_config=generation
        )
        seconds = time.perf_counter() - start
        if tuple(ids.shape) != (arguments.batch, 1 + arguments.new_tokens):
            raise SystemExit(
                f"generate did not take {arguments.new_tokens} steps: it returned ids of shape "
                f"{tuple(ids.shape)}"
            )
        return seconds

    with torch.inference_mode():
        for _ in range(arguments.warm_up):
            run()
        seconds = [run() for _ in range(arguments.repeats)]
    median = statistics.median(seconds)
    return {
        "seconds": round(median, 4),
        "milliseconds_per_step": round(1000 * median / arguments.new_tokens, 3),
        "target_tokens_per_second": round(arguments.batch * arguments.new_tokens / median, 1),
        "fastest_run": round(min(seconds), 4),
        "slowest_run": round(max(seconds), 4),
        "parameters": count_parameters(model),
    }


def count_parameters(model: torch.nn.Module) -> int:
    """Trainable ones, each tied matrix once; the table of sinusoids is not trainable."""
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


positive.__name__ = "whole number from 1 up"  # argparse names the type in its error line


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="benchmark", required=True)
    shown = "default: %(default)s"

    def add_command(name: str, about: str, **defaults: int) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=about, description=about)
        for option, default in defaults.items():
            flag = "--" + option.replace("_", "-")
            command.add_argument(flag, type=positive, default=default, metavar="N", help=shown)
        command.add_argument("--dtype", choices=list(DTYPES), default="float32", help=shown)
        command.add_argument("--threads", type=positive, default=2, metavar="N", help=shown)
        return command

    shape = {"layers": 3, "d_model": 256, "d_ff": 1024, "heads": 4, "vocabulary_size": 8000}
    step = {"batch": 64, "length": 32, "steps": 20, "warm_up": 5}
    command = add_command("train", "optimizer steps on random sentences", **shape, **step)
    command.add_argument("--compile", action="store_true", help="torch.compile the model")

    shape = {"layers": 6, "d_model": 512, "d_ff": 2048, "heads": 8, "vocabulary_size": 32000}
    search = {"batch": 16, "source_length": 20, "beam_size": 4, "new_tokens": 40}
    add_command("decode", "beam search", **shape, **search, repeats=3, warm_up=1)

    arguments = parser.parse_args()
    if arguments.d_model % arguments.heads:
        parser.error(
            f"--d-model must be a multiple of --heads. "
            f"Received: {arguments.d_model} and {arguments.heads}"
        )
    if arguments.vocabulary_size <= FIRST_WORD:
        parser.error(
            f"--vocabulary-size must be above {FIRST_WORD}, the number of special ids. "
            f"Received: {arguments.vocabulary_size}"
        )
    return arguments


def main() -> None:
    arguments = parse_arguments()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(SEED)
    result = decode(arguments) if arguments.benchmark == "decode" else train(arguments)
    settings = {key: value for key, value in vars(arguments).items() if key != "benchmark"}
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    report = {"benchmark": arguments.benchmark, "system": "hugging_face", **result}
    print(json.dumps({**report, "settings": settings, "versions": versions}))


if __name__ == "__main__":
    main()
