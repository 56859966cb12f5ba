# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""What every handler of this package can do that MONAI's cannot: be taken off the engine again."""

from __future__ import annotations

from ignite.engine import RemovableEventHandle

__all__ = ["Detachable"]


class Detachable:
    """Keeps the handles of its callbacks, which ``attach`` puts into :attr:`_handles`."""

    _handles: list[RemovableEventHandle]

    def detach(self) -> None:
        """Take all callbacks off the engine."""
        for handle in self._handles:
            handle.remove()
