# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.bundle.preflight`."""

from monai_fairfl.bundle.preflight import check_config as check_config
