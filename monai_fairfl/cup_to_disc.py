# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.metrics.cup_to_disc`."""

from monai_fairfl.metrics.cup_to_disc import CupToDiscError as CupToDiscError
