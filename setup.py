"""Packaging. The version has one home, `keras_transformer/__init__.py`."""

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "keras_transformer" / "__init__.py").read_text(), re.M
).group(1)

BEAM = ["apache-beam>=2.77,<3"]
TEST = [
    "hypothesis>=6.100",
    "pillow>=10",
    "playwright>=1.60",
    "pytest>=8.2",
    "pytest-xdist>=3.6",
    "ruff>=0.17,<0.18",
    *BEAM,
]

setup(
    name="keras-transformer",
    version=VERSION,
    description="The whole system of 'Attention Is All You Need' in TensorFlow and Keras",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[
        *find_packages(include=["keras_transformer*", "trainers*", "export*"]),
        "trainers.recipes",
    ],
    # The recipes lie at the top of the tree, where people look for them, and are installed inside
    # the package that reads them.
    package_dir={"trainers.recipes": "recipes"},
    package_data={
        "export": ["*.c"],
        "export.checking": ["server_operations/*.txt"],
        "keras_transformer.diagnosis": ["page_files/*"],
        "trainers": ["demo_corpus/*.xz", "demo_corpus/*.md", "demo_corpus/*.txt"],
        "trainers.recipes": ["*.yaml"],
    },
    zip_safe=False,
    install_requires=[
        "grpcio>=1.70",
        "keras>=3.15.1,<4",
        "keras-nlp>=0.32,<0.33",
        "matplotlib>=3.9",
        # tensorflow-datasets prepares sets with it and does not ask for it.
        "importlib_resources",
        "numpy",
        "plotly>=6",
        "pyyaml>=6",
        "requests>=2.32",
        "sacrebleu>=2.6",
        "sacremoses>=0.1.1",
        "safetensors>=0.5",
        # The first that reads a model from memory and does not hang.
        "sentencepiece>=0.2.3",
        "tenacity>=9",
        "tensorboard>=2.20",
        "tensorflow>=2.21,<2.22",
        "tensorflow-datasets>=4.9.10",
        "tensorflow-serving-api>=2.21,<2.22",
        # Of tensorflow's minor version, for its compiled operations; 2.21.0 cannot be imported.
        "tensorflow-text>=2.21.1,<2.22",
        "tqdm>=4.66",
    ],
    extras_require={
        "beam": BEAM,
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
        "japanese": ["sacrebleu[ja]>=2.6"],
        "test": TEST,
        "dev": [*TEST, "build>=1.2"],
    },
    entry_points={"console_scripts": ["keras-transformer = keras_transformer.cli:main"]},
    classifiers=[
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
