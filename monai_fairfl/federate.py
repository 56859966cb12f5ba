# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.bundle.federation` and :mod:`monai_fairfl.bundle.initial`."""

from monai_fairfl.bundle.federation import BundleFederation as BundleFederation
from monai_fairfl.bundle.initial import bundle_recipe as bundle_recipe
from monai_fairfl.bundle.initial import initial_model as initial_model
