# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .apps import FlowerTransport as FlowerTransport
from .apps import simulate_job as simulate_job
from .job import export_app as export_app
from .job import job_of_config as job_of_config
