# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Moved to :mod:`monai_fairfl.run_folder.ledger`."""

from monai_fairfl.run_folder.ledger import Ledger as Ledger
from monai_fairfl.run_folder.ledger import digest_of as digest_of
from monai_fairfl.run_folder.ledger import head_of as head_of
from monai_fairfl.run_folder.ledger import number_in as number_in
from monai_fairfl.run_folder.ledger import read_ledger as read_ledger
