# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What every handler of this package can do that MONAI's cannot: be taken off the engine again."""

from __future__ import annotations

from ignite.engine import RemovableEventHandle


class Detachable:
    """Keeps the handles of its callbacks, which ``attach`` puts into :attr:`_handles`."""

    _handles: list[RemovableEventHandle]

    def detach(self) -> None:
        """Take all callbacks off the engine."""
        for handle in self._handles:
            handle.remove()
