# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .entry import Context as Context
from .entry import Entry as Entry
from .entry import Memory as Memory
from .features import network_inputs as network_inputs
from .probe import Probe as Probe
from .probe import TrainingProbe as TrainingProbe
from .probe import estimate as estimate
from .table import MEASUREMENTS as MEASUREMENTS
from .table import leave_one_out_model as leave_one_out_model
