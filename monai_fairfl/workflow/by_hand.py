# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What an argument or an overlay changed in a section of a bundle's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DESCRIPTION = "_desc_"
OF_THE_WINDOWS = frozenset(
    {"_target_", "overlap", "mode", "sw_batch_size", "sw_device", "device", "progress"}
)
"""Arguments of an inferer that may differ from run to run; its ``_target_`` decides about mirrored
looks.
"""


@dataclass(frozen=True)
class Difference:
    """One part of a configuration that is not the bundle's own.

    Args:
        key: of the part, such as ``"preprocessing#transforms#5#mode"``.
        bundle: its content in the bundle; ``None``: absent.
        here: its content in the running configuration; ``None``: absent.
        may_differ: whether it is a setting of the inferer that every run may choose.
    """

    key: str
    bundle: Any
    here: Any
    may_differ: bool


def differences(key: str, bundle: Any, here: Any, may_differ: bool = False) -> list[Difference]:
    """The smallest parts in which two contents of a configuration's key differ; descriptions do not
    count.

    Args:
        key: whose contents these are.
        bundle: its content in the bundle's own files.
        here: its content in the running configuration.
        may_differ: goes into what is found.

    >>> own = {"_target_": "SliceInferer", "roi_size": "@size"}
    >>> for found in differences("inferer", own, {**own, "roi_size": [16, 16], "overlap": 0.5}):
    ...     print(found.key, found.bundle, found.here, found.may_differ)
    inferer#overlap None 0.5 True
    inferer#roi_size @size [16, 16] False
    """
    if isinstance(bundle, Mapping) and isinstance(here, Mapping):
        found = []
        for name in sorted({*bundle, *here} - {DESCRIPTION}):
            of_windows = key.endswith("inferer") and name in OF_THE_WINDOWS
            found += differences(
                f"{key}#{name}", bundle.get(name), here.get(name), may_differ or of_windows
            )
        return found
    both_lists = isinstance(bundle, list) and isinstance(here, list)
    if both_lists and len(bundle) == len(here):
        found = []
        for index in range(len(bundle)):
            found += differences(f"{key}#{index}", bundle[index], here[index], may_differ)
        return found
    if bundle == here:
        return []
    return [Difference(key, bundle, here, may_differ)]
