# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Segments one image in a MONAI Deploy application; runs in an environment that has it.

    python deploy_app.py BUNDLE IMAGE MASK

BUNDLE is a TorchScript file or a bundle's folder; IMAGE the folder of a DICOM series, or a
photograph. MASK, ``.npz``, gets the mask as the application's last operator receives it, ``pred``,
and of a series the ``affine`` of its volume.
"""

from __future__ import annotations

import sys
from pathlib import Path

import monai

# MONAI Deploy installs itself into MONAI's package, which lies elsewhere here.
monai.__path__.append(str(next(Path(sys.prefix, "lib").glob("python*/site-packages/monai"))))

import numpy as np  # noqa: E402
from monai.deploy.conditions import CountCondition  # noqa: E402
from monai.deploy.core import (  # noqa: E402
    AppContext,
    Application,
    Image,
    IOType,
    Operator,
    OperatorSpec,
)
from monai.deploy.operators import (  # noqa: E402
    DICOMDataLoaderOperator,
    DICOMSeriesSelectorOperator,
    DICOMSeriesToVolumeOperator,
)
from monai.deploy.operators.monai_bundle_inference_operator import (  # noqa: E402
    BundleConfigNames,
    IOMapping,
    MonaiBundleInferenceOperator,
)
from PIL import Image as Picture  # noqa: E402


class ReadPhotograph(Operator):
    """Emits a photograph, ``(width, height, 3)``, as MONAI's ``PILReader`` has its axes."""

    def __init__(self, fragment: Application, *conditions: CountCondition, file: Path, name: str):
        self.file = file
        super().__init__(fragment, *conditions, name=name)

    def setup(self, spec: OperatorSpec) -> None:
        spec.output("image")

    def compute(self, op_input: object, op_output: object, context: object) -> None:
        pixels = np.asarray(Picture.open(self.file).convert("RGB"))
        # As MONAI's reader says it of a colour picture.
        colours_last = {"original_channel_dim": -1}
        image = Image(pixels.transpose(1, 0, 2), colours_last)
        op_output.emit(image, "image")  # type: ignore[attr-defined]


class KeepMask(Operator):
    """Writes what it receives."""

    def __init__(self, fragment: Application, file: str, name: str):
        self.file = file
        super().__init__(fragment, name=name)

    def setup(self, spec: OperatorSpec) -> None:
        spec.input("pred")

    def compute(self, op_input: object, op_output: object, context: object) -> None:
        pred = op_input.receive("pred")  # type: ignore[attr-defined]
        affine = pred.metadata().get("nifti_affine_transform", np.eye(4))
        np.savez(self.file, pred=pred.asnumpy(), affine=affine)


class SegmentOne(Application):
    """From files to a mask: the operators that a user of MONAI Deploy connects."""

    def __init__(self, bundle: Path, image: Path, mask: str):
        self.bundle = bundle
        self.image = image
        self.mask = mask
        super().__init__([])

    def compose(self) -> None:
        images = self.series() if self.image.is_dir() else self.photograph()
        segment = MonaiBundleInferenceOperator(
            self,
            input_mapping=[IOMapping("image", Image, IOType.IN_MEMORY)],
            output_mapping=[IOMapping("pred", Image, IOType.IN_MEMORY)],
            app_context=AppContext({}),
            bundle_path=self.bundle,
            bundle_config_names=BundleConfigNames(config_names=["inference"]),
            name="segment",
        )
        self.add_flow(images, segment, {("image", "image")})
        self.add_flow(segment, KeepMask(self, self.mask, name="keep"), {("pred", "pred")})

    def photograph(self) -> Operator:
        return ReadPhotograph(self, CountCondition(self, 1), file=self.image, name="read")

    def series(self) -> Operator:
        once = CountCondition(self, 1)
        load = DICOMDataLoaderOperator(self, once, input_folder=self.image, name="load")
        select = DICOMSeriesSelectorOperator(self, rules="", name="select")
        volume = DICOMSeriesToVolumeOperator(self, name="volume")
        self.add_flow(load, select, {("dicom_study_list", "dicom_study_list")})
        selected = "study_selected_series_list"
        self.add_flow(select, volume, {(selected, selected)})
        return volume


if __name__ == "__main__":
    SegmentOne(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]).run()
