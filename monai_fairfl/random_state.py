# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.utils.random_state`."""

from monai_fairfl.utils.random_state import own_random_state as own_random_state
from monai_fairfl.utils.random_state import seed_of as seed_of
