# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Transports: in this process, in worker processes, over NVIDIA FLARE, over Flower."""
