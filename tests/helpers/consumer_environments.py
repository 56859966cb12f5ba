# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Environments with MONAI Label and MONAI Deploy, beside the packages of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.made_once import MadeOnce

# Without their dependencies, which bring gigabytes of CUDA: only what they import here.
LABEL = [
    *("monailabel==0.8.5", "expiring_dict", "pydantic", "pydantic-core", "annotated-types"),
    *("typing-inspection", "pydantic-settings", "python-dotenv", "pynrrd", "shapely"),
    *("itk==5.4.7", "itk-core==5.4.7", "itk-numerics==5.4.7", "itk-io==5.4.7"),
    *("itk-filtering==5.4.7", "itk-registration==5.4.7", "itk-segmentation==5.4.7"),
    *("cachetools", "fastapi", "starlette", "pydicom-seg", "einops"),
]
DEPLOY = [
    *("monai-deploy-app-sdk==4.0.0", "holoscan-cu13==4.6.0", "wheel-axle-runtime"),
    *("nvidia-cuda-runtime", "typeguard", "colorama", "tritonclient", "python-rapidjson"),
    *("geventhttpclient", "gevent", "greenlet", "brotli", "zope.event", "zope.interface"),
]

PROGRAMS = CHECKOUT / "tests" / "consumers" / "programs"


@dataclass(frozen=True)
class Environment:
    """A virtual environment that also sees the packages of this one.

    Args:
        folder: of the environment.
    """

    folder: Path

    def run(self, program: str, *words: str | Path) -> str:
        """What a program of this folder prints."""
        cuda_runtime = self.folder.glob("lib/python*/site-packages/nvidia/*/lib")
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "LD_LIBRARY_PATH": os.pathsep.join(str(folder) for folder in cuda_runtime),
        }
        done = subprocess.run(
            [self.folder / "bin" / "python", PROGRAMS / program, *words],
            capture_output=True,
            text=True,
            env=environment,
            # MONAI Deploy takes a folder "models" of the working folder for its models.
            cwd=self.folder,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


def environment_with(packages: Sequence[str]) -> Callable[[Path], None]:
    """The maker of an environment with these packages; a reason beside it where it cannot be."""

    def make(folder: Path) -> None:
        venv.create(folder, with_pip=True)
        (site_packages,) = folder.glob("lib/python*/site-packages")
        (site_packages / "host.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        install = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-deps"]
        done = subprocess.run([*install, *packages], capture_output=True, text=True)
        if done.returncode:
            (folder / "missing").write_text(done.stderr.strip().splitlines()[-1])

    return make


def require(name: str, packages: Sequence[str], made_once: MadeOnce) -> Environment:
    if sys.platform != "linux":
        pytest.skip(f"{name} is tried on Linux")
    folder = made_once(name, environment_with(packages))
    if (folder / "missing").exists():
        pytest.skip(f"{name} cannot be installed: {(folder / 'missing').read_text()}")
    return Environment(folder)
