# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands in one process, which ends with the first that fails. Sites train or answer at once::

python -m helpers.in_turn '[true, [["monai_fairfl", "doctor", "DATA"], ["monai.bundle", "run"]]]'
"""

from __future__ import annotations

import json
import runpy
import shutil
import sys

from helpers.linear_federation import answer_with_cases

from monai_fairfl.client import FairMonaiAlgo

if __name__ == "__main__":
    trains, commands = json.loads(sys.argv[1])
    if not trains:
        FairMonaiAlgo.answer = answer_with_cases  # type: ignore[method-assign]
    for words in commands:
        # A page shows several ways to one run, of which a reader takes one.
        for option, value in zip(words, words[1:]):
            if option in ("--run_dir", "--out") and value.startswith("runs/"):
                shutil.rmtree(value, ignore_errors=True)
        print("\n", *words, flush=True)
        sys.argv = words
        try:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        except SystemExit as ended:
            if ended.code:
                raise
