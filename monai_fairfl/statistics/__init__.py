# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Fairness measures, confidence intervals of scores, and strategies compared in pairs."""
