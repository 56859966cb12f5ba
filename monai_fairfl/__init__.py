# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fair federated medical image segmentation for MONAI."""

__version__ = "0.1.0"
