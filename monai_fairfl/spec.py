# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.protocol.model_spec`."""

from monai_fairfl.protocol.model_spec import read_spec as read_spec
