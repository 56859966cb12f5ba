# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What the package is, what it needs, and the bundles that travel inside its wheel."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (ROOT / "monai_fairfl" / "__init__.py").read_text())
README = ROOT / "README.md"

REPORT = ["jinja2"]
DICOM = ["pydicom>=3", "highdicom>=0.24"]
TRACKING = ["tensorboard"]
ONNX = ["onnx", "onnxscript"]
# whose small data the controls of experiments/ train on; STAPLE for a yardstick there
EXPERIMENTS = ["scikit-learn", "SimpleITK"]
DOCS = ["mkdocs-material", "mkdocstrings[python]", "latex2mathml"]
NVFLARE = ["nvflare>=2.9,<2.10"]
# 1.42 does not resolve together with NVFlare 2.9; Ray is for the simulation
FLOWER = ["flwr[simulation]>=1.41,<1.42"]


class BuildWithBundles(build_py):
    """Copies ``bundles/`` into the wheel; an editable install reads them where they lie."""

    def run(self) -> None:
        super().run()
        if getattr(self, "editable_mode", False):
            return
        target = Path(self.build_lib) / "monai_fairfl" / "_bundles"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(
            ROOT / "bundles",
            target,
            ignore=shutil.ignore_patterns("__pycache__", "*.pt", "*.ts", "*.recipe.json", ".*"),
        )


setup(
    name="monai-fairfl",
    version=VERSION.group(1) if VERSION else "",
    description="Fair federated medical image segmentation for MONAI bundles",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="MONAI FairFL contributors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Healthcare Industry",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Medical Science Apps.",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["monai_fairfl", "monai_fairfl.*"]),
    package_data={"": ["py.typed", "*.pyi", "*.json", "*.jinja"]},
    cmdclass={"build_py": BuildWithBundles},
    python_requires=">=3.10",
    install_requires=[
        "monai>=1.6,<2",
        "torch>=2.8",
        "numpy>=1.24,<3",
        "pytorch-ignite>=0.5,<0.6",  # its private attributes are used in one module
        "lazy-loader>=0.4",
        "nibabel",
        "pillow",
        "safetensors",
        "scikit-image",
        "scipy>=1.15",
        "rich",
        "fire",  # with the next two: python -m monai.bundle run, verify_metadata
        "jsonschema",
        "pyyaml",
    ],
    extras_require={
        "report": REPORT,
        "tracking": TRACKING,
        "nvflare": NVFLARE,
        "flower": FLOWER,
        "dicom": DICOM,
        "onnx": ONNX,
        "experiments": EXPERIMENTS,
        "docs": DOCS,
        "dev": [
            "pytest",
            "pytest-xdist>=3.7",
            "filelock",
            "hypothesis",
            "matplotlib",
            "black",
            "import-linter",
            "isort",
            "ruff",
            "mypy",
            "pre-commit",
            "pre-commit-hooks",
            "setuptools>=77",
            *REPORT,
            *DICOM,
            *TRACKING,
            *ONNX,
            *EXPERIMENTS,
            *DOCS,
            *NVFLARE,
        ],
    },
    entry_points={"console_scripts": ["monai-fairfl = monai_fairfl.cli:main"]},
)
