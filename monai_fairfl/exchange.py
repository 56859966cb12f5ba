# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.server.exchange`."""

from monai_fairfl.server.exchange import Inbox as Inbox
from monai_fairfl.server.exchange import TooFewClients as TooFewClients
from monai_fairfl.server.exchange import Transport as Transport
