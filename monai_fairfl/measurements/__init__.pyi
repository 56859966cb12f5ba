# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .features import network_inputs as network_inputs
from .functions import Context as Context
from .functions import Memory as Memory
from .functions import leave_one_out_model as leave_one_out_model
from .probe import Probe as Probe
from .probe import TrainingProbe as TrainingProbe
from .probe import estimate as estimate
