# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.protocol`."""

from monai_fairfl.protocol.checks import refusal as refusal
from monai_fairfl.protocol.messages import CONTEXT_KEYS as CONTEXT_KEYS
from monai_fairfl.protocol.messages import Measure as Measure
from monai_fairfl.protocol.messages import Reply as Reply
from monai_fairfl.protocol.messages import Request as Request
from monai_fairfl.protocol.messages import Train as Train
from monai_fairfl.protocol.messages import failed as failed
from monai_fairfl.protocol.model_spec import ModelSpec as ModelSpec
from monai_fairfl.protocol.values import Estimate as Estimate
from monai_fairfl.protocol.values import Measurement as Measurement
from monai_fairfl.protocol.values import Weights as Weights
from monai_fairfl.protocol.values import to_json as to_json
from monai_fairfl.protocol.values import value_of as value_of
