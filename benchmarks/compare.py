"""Times this project and Hugging Face's Marian in turn, and prints the ratios.

    python benchmarks/compare.py --peer-python .venv-peers/bin/python train --dtype float32
    python benchmarks/compare.py --peer-python .venv-peers/bin/python decode

Both run the same shapes in processes of their own, one after the other and again, so that a
machine whose speed drifts slows both. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

PEER_SCRIPT = Path(__file__).with_name("peer_hugging_face.py")

# glibc gives large blocks back to the system when they are freed, and page faults then cost as
# much as the work. It is kept from that for both systems.
MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}


def main() -> int:
    """Runs the pairs and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", required=True, help="Python with torch and transformers")
    parser.add_argument("--pairs", type=int, default=3, help="how often both are run")
    parser.add_argument("what", choices=("train", "decode"))
    options, shape = parser.parse_known_args()
    ours = [sys.executable, "-m", "keras_transformer", "benchmark", options.what, "--json", *shape]
    peer = [options.peer_python, str(PEER_SCRIPT), options.what, *shape]
    ratios = []
    for pair in range(options.pairs):
        speeds = [_speed(command) for command in (ours, peer)]
        ratios.append(speeds[0] / speeds[1])
        print(
            f"pair {pair + 1}: {speeds[0]:.0f} against {speeds[1]:.0f} target tokens per second, "
            f"ratio {ratios[-1]:.2f}",
            file=sys.stderr,
        )
    result = {
        "benchmark": options.what,
        "shape": shape,
        "ratio_median": statistics.median(ratios),
        "ratios": ratios,
    }
    print(json.dumps(result))
    return 0


def _speed(command: list[str]) -> float:
    """Target tokens per second of one process."""
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, **MEMORY}
    ).stdout
    return json.loads(output)["target_tokens_per_second"]


if __name__ == "__main__":
    sys.exit(main())
