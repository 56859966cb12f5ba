# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a configuration that travel in a model's recipe, such as its network and its inferer.

Whoever uses the model builds them, so they must not do more than compute: classes are of a list,
and their arguments are plain values. No class of the list opens a file that it is not given as an
image, loads weights, or looks up a function by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

READERS = ("ITKReader", "NibabelReader", "PILReader")
FUNCTIONS = [
    "monai_fairfl.data.grey_levels",
    "monai_fairfl.data.in_colours",
    "monai_fairfl.data.normalise_field",
]
"""Given as an argument, by ``"_mode_": "callable"``."""

OF_FILES = ("@values", "@stereo")
"""References that stay: to how a site writes its files, not to how a model was trained."""

ALLOWED = [
    *("AttentionUnet", "BasicUNet", "BasicUNetPlusPlus", "DynUNet", "HighResNet", "SegResNet"),
    *("SegResNetDS", "SwinUNETR", "UNet", "UNETR", "VNet"),
    *("SimpleInferer", "SliceInferer", "SlidingWindowInferer"),
    *("EnsureChannelFirstd", "Orientationd", "Resized", "ResizeWithPadOrCropd", "Spacingd"),
    *("CenterScaleCropd", "CenterSpatialCropd", "DivisiblePadd", "SpatialPadd"),
    *("NormalizeIntensityd", "ScaleIntensityd", "ScaleIntensityRanged"),
    *("Activationsd", "AsDiscreted", "LoadImaged", "ScaleIntensityRangePercentilesd"),
    *READERS,
    *FUNCTIONS,
    "monai_fairfl.inferers.CoarseToFineInferer",
    "monai_fairfl.inferers.FirstOutputInferer",
    "monai_fairfl.inferers.MirroredInferer",
    "monai_fairfl.inferers.NeighbourSliceInferer",
    "monai_fairfl.data.LabelStructuresd",
    "monai_fairfl.data.NestStructuresd",
    "monai_fairfl.data.NormaliseFieldd",
    "monai_fairfl.data.OneChanneld",
    "monai_fairfl.data.OneViewd",
    "monai_fairfl.data.SmoothResized",
]
"""What a part may build: classes of MONAI by their names, and those of this package."""


def acts(value: Any) -> bool:
    """Whether a value means more than itself in MONAI's configuration, where recipes' values go.

    >>> acts({"size": [64, 64], "norm": "batch"}), acts([1, "$open('x', 'w')"])
    (False, True)
    """
    if isinstance(value, str):
        # So begin expressions, references and macros.
        return value.startswith(("$", "@", "%"))
    if isinstance(value, Mapping):
        return "_target_" in value or any(acts(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(acts(item) for item in value)


def refused_in(content: Any) -> str:
    """What a part of a recipe may not hold, in words; empty where all is allowed.

    >>> refused_in({"_target_": "UNet", "channels": [4, 8], "strides": [2]})
    ''
    >>> refused_in([{"_target_": "os.system", "command": "ls"}])
    "the _target_ 'os.system'"
    >>> refused_in({"_target_": "LoadImaged", "keys": "image", "reader": "os.system"})
    "the reader 'os.system'"
    """
    if isinstance(content, str):
        return repr(content) if acts(content) and content not in OF_FILES else ""
    if isinstance(content, (list, tuple)):
        return next(filter(None, map(refused_in, content)), "")
    if not isinstance(content, Mapping):
        return ""
    allowed: dict[str, Sequence[str]] = {"_target_": ALLOWED, "_mode_": ("callable",)}
    if not isinstance(content.get("reader"), Mapping):
        # MONAI looks a reader up by any dotted path, and calls it.
        allowed["reader"] = READERS
    for name, value in content.items():
        if name in allowed:
            if value not in allowed[name]:
                return f"the {name} {value!r}"
        elif not isinstance(name, str) or name.startswith("_"):
            return f"the key {name!r}"
        elif found := refused_in(value):
            return found
    return ""


def refused_part(part: Any) -> str:
    """What a recipe may not hold as one of its parts, in words; empty where all is allowed.

    >>> refused_part({"content": {"_target_": "UNet"}, "values": ["cases#folder"]})
    "the keys ['cases#folder']"
    """
    is_part = isinstance(part, Mapping) and set(part) == {"content", "values"}
    if not is_part or not isinstance(part["values"], (list, tuple)):
        return repr(part)
    # A key such as "cases#folder" would be a place of the configuration.
    places = [key for key in part["values"] if not str(key).isidentifier()]
    return refused_in(part["content"]) or (f"the keys {places}" if places else "")
