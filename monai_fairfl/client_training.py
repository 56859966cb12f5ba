# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.client.training`."""

from monai_fairfl.client.training import TRAINING_HANDLERS as TRAINING_HANDLERS
