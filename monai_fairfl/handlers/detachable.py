# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Lets every handler of this package be detached, which MONAI's handlers cannot be."""

from __future__ import annotations

from typing import Any

from ignite.engine import RemovableEventHandle


class Detachable:
    """Removes the callbacks whose handles ``attach`` stored in :attr:`_handles`."""

    _handles: list[RemovableEventHandle]

    def attach(self, engine: Any) -> None:
        """Add the callbacks, in a subclass."""
        raise NotImplementedError

    def detach(self) -> None:
        """Remove all callbacks from the engine; there are none before ``attach``."""
        for handle in getattr(self, "_handles", []):
            handle.remove()
