# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a federation over another program (an engine) consists of, whichever program that is.

``wire`` makes plain values of requests and replies, and ``site`` answers requests at a hospital.
It also makes a ``job``, which the server runs. No module here knows an engine.
"""
