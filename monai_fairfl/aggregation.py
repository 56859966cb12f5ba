# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.protocol`."""

from monai_fairfl.protocol.averages import BUFFER_POLICIES as BUFFER_POLICIES
from monai_fairfl.protocol.averages import Aggregation as Aggregation
from monai_fairfl.protocol.averages import normalise as normalise
from monai_fairfl.protocol.averages import prior_weights as prior_weights
from monai_fairfl.protocol.averages import sample_shares as sample_shares
from monai_fairfl.protocol.averages import uniform as uniform
from monai_fairfl.protocol.replies import Replies as Replies

prior = prior_weights
