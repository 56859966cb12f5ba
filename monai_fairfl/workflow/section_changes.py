# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Parts of a bundle's configuration that an argument or an overlay changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DESCRIPTION = "_desc_"

FREE_INFERER_ARGUMENTS = frozenset(
    {"mirror_axes", "overlap", "mode", "sw_batch_size", "sw_device", "device", "progress"}
)
"""Arguments of an inferer that may differ from run to run."""


@dataclass(frozen=True)
class Change:
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


def changes_of(key: str, bundle: Any, here: Any, may_differ: bool = False) -> list[Change]:
    """Find the smallest parts in which two contents of a configuration's key differ.

    Descriptions (``_desc_``) do not count.

    Args:
        key: of both contents.
        bundle: its content in the bundle's own files.
        here: its content in the running configuration.
        may_differ: whether the key belongs to an argument that every run may choose.

    >>> own = {"_target_": "SliceInferer", "roi_size": "@size"}
    >>> running = {**own, "roi_size": [16, 16], "overlap": 0.5}
    >>> for change in changes_of("inferer", own, running):
    ...     print(change.key, change.bundle, change.here, change.may_differ)
    inferer#overlap None 0.5 True
    inferer#roi_size @size [16, 16] False
    """
    if isinstance(bundle, list) and isinstance(here, list) and len(bundle) == len(here):
        bundle, here = dict(enumerate(bundle)), dict(enumerate(here))
    if not isinstance(bundle, Mapping) or not isinstance(here, Mapping):
        return [] if bundle == here else [Change(key, bundle, here, may_differ)]
    changes = []
    for name in sorted({*bundle, *here} - {DESCRIPTION}):
        is_free = key.endswith("inferer") and name in FREE_INFERER_ARGUMENTS
        changes += changes_of(
            f"{key}#{name}", bundle.get(name), here.get(name), may_differ or is_free
        )
    return changes
