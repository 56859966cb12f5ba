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
FACE = (ROOT / "monai_fairfl" / "__init__.py").read_text()
VERSION = re.findall(r'__version__ = "(.+)"', FACE)[0]
CITATION = ROOT / "CITATION.cff"

REPORT = ["jinja2>=3.1.2", "matplotlib>=3.8"]
DICOM = ["pydicom>=3", "highdicom>=0.24"]
ONNX = ["onnx", "onnxscript"]
# whose small data the controls of experiments/ train on
EXPERIMENTS = ["scikit-learn"]
# what pytest needs for every test; Flower's tests have an environment with these alone
TESTS = ["pytest", "pytest-xdist>=3.7", "filelock", "hypothesis"]
DOCS = ["mkdocs-material", "mkdocstrings[python]", "latex2mathml"]
NVFLARE = ["nvflare>=2.9,<2.10"]
# 1.42 does not resolve together with NVFlare 2.9; Ray is for the simulation
FLOWER = ["flwr[simulation]>=1.41,<1.42"]


def project_urls() -> dict[str, str]:
    """Where the project lives: ``repository-code`` of CITATION.cff, empty until that is set."""
    if not CITATION.exists():
        return {}
    home = re.search(r"^repository-code: *[\"']?([^\s\"']+)", CITATION.read_text(), re.MULTILINE)
    if home is None:
        return {}
    url = home.group(1).rstrip("/")
    pages = f"{url}/blob/v{VERSION}"
    return {
        "Homepage": url,
        "Documentation": f"{pages}/docs/install.md",
        "Changelog": f"{pages}/CHANGELOG.md",
        "Issues": f"{url}/issues",
    }


def long_description() -> str:
    """The README for a package index, where a link to another file of the project leads nowhere.

    Such links and pictures get the address of the project; while it has none, links keep only their
    words, and pictures go.
    """
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    home = project_urls().get("Homepage")
    local = r"(?!https?://|#|mailto:)([^)\s]+)"
    if home is None:
        text = re.sub(rf"!\[[^\]]*\]\({local}\)\n*", "", text)
        return re.sub(rf"\[([^\]]+)\]\({local}\)", r"\1", text)
    version = f"v{VERSION}"
    text = re.sub(rf"(!\[[^\]]*\])\({local}\)", rf"\1({home}/raw/{version}/\2)", text)
    return re.sub(rf"(\[[^\]]+\])\({local}\)", rf"\1({home}/blob/{version}/\2)", text)


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
    version=VERSION,
    description="Fair federated medical image segmentation for MONAI bundles",
    long_description=long_description(),
    long_description_content_type="text/markdown",
    author="MONAI FairFL contributors",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    project_urls=project_urls(),
    keywords=["federated learning", "fairness", "medical imaging", "segmentation", "MONAI"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Healthcare Industry",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
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
        "pytorch-ignite>=0.5.1,<0.6",  # its private attributes are used in one module
        "lazy-loader>=0.4",
        "nibabel>=5.2",
        "pillow>=10.1",
        "safetensors>=0.4.3",
        "scikit-image>=0.22",
        "scipy>=1.15",
        "rich>=13.5",
        "fire>=0.6",  # with the next two: python -m monai.bundle run, verify_metadata
        "jsonschema>=4.18",
        "pyyaml>=6.0.1",
        "typing-extensions>=4.5",  # dataclass_transform, which Python has from 3.11 on
    ],
    extras_require={
        "report": REPORT,
        "nvflare": NVFLARE,
        "flower": FLOWER,
        "dicom": DICOM,
        "onnx": ONNX,
        "experiments": EXPERIMENTS,
        "docs": DOCS,
        "tests": TESTS,
        "dev": [
            "einops",  # SwinUNETR's, which a test adopts
            "black",
            "import-linter",
            "isort",
            "ruff",
            "mypy",
            "pre-commit",
            "pre-commit-hooks",
            "setuptools>=77",
            "build",  # with the next two: the archive and the wheel, and how an index shows them
            "twine",
            "readme-renderer[md]",
            *TESTS,
            *REPORT,
            *DICOM,
            *ONNX,
            *EXPERIMENTS,
            *DOCS,
            *NVFLARE,
        ],
    },
    entry_points={"console_scripts": ["monai-fairfl = monai_fairfl.cli:main"]},
)
