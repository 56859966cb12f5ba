# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .entry import Entry as Entry
from .entry import Memory as Memory
from .features import network_inputs as network_inputs
from .probe import Probe as Probe
from .table import MEASUREMENTS as MEASUREMENTS
from .training_probe import TrainingProbe as TrainingProbe
