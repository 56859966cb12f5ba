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
"""Checks of what clients sent, before a strategy sees it."""

from monai_fairfl.guards.base import Guard, Verdict
from monai_fairfl.guards.nonfinite import NonFinite
from monai_fairfl.guards.outsized import Outsized

__all__ = ["DEFAULT", "Guard", "NonFinite", "Outsized", "Verdict"]

DEFAULT: tuple[Guard, ...] = (NonFinite(), Outsized())
"""The guards of a federation that names none."""
