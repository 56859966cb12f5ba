# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .averages import BUFFER_POLICIES as BUFFER_POLICIES
from .averages import Aggregation as Aggregation
from .averages import normalise as normalise
from .averages import sample_shares as sample_shares
from .averages import uniform as uniform
from .checks import refusal as refusal
from .geometry import Geometry as Geometry
from .measured import RANGES as RANGES
from .measured import Expected as Expected
from .measured import Range as Range
from .messages import CONTEXT_KEYS as CONTEXT_KEYS
from .messages import Measure as Measure
from .messages import Reply as Reply
from .messages import Request as Request
from .messages import Train as Train
from .messages import failed as failed
from .model_spec import ModelSpec as ModelSpec
from .model_spec import read_spec as read_spec
from .replies import Replies as Replies
from .update_matrix import UpdateMatrix as UpdateMatrix
from .values import Estimate as Estimate
from .values import Measurement as Measurement
from .values import Weights as Weights
from .values import to_json as to_json
from .values import value_of as value_of
