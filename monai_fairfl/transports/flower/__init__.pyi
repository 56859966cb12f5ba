# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0

from .job.export import export_app as export_app
from .job.flower_job import FlowerJob as FlowerJob
from .job.simulate import simulate_job as simulate_job
from .server.transport import FlowerTransport as FlowerTransport
