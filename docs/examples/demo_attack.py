# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""``make demo-attack``: two more hospitals join the demo's, one sends noise, one lies.

FedCE trains the six hospitals three times: while all are honest, while two attack and nothing is
checked, and while they attack a federation that checks updates and limits reports. Each attack is
one overlay of the site's own configuration, as a real attacker would change it:
``attacks/noise.json`` and ``attacks/lie.json``.

::

    python docs/examples/demo_attack.py --out demo/attack
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attacked import HOSPITALS, STORIES, outcome, trainings

from monai_fairfl.bundle.trainings import Jobs, run_trainings
from monai_fairfl.data.pelvis import write_demo
from monai_fairfl.errors import FairFLError
from monai_fairfl.report import write_report


def main() -> None:
    """Write the hospitals, train three times, report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo/attack"), help="a new folder")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    out = arguments.out.absolute()
    write_demo(out / "hospitals", arguments.seed, sites=HOSPITALS)
    try:
        all_three = trainings(out, arguments.rounds, arguments.seed)
        failed = run_trainings(all_three, Jobs("auto", ["cpu"]), most=len(HOSPITALS))
    except FairFLError as error:
        sys.exit(str(error))
    if failed:
        sys.exit("; ".join(failed.values()))
    write_report([out / story.name for story in STORIES], out)
    print(f"{outcome(out)}\n\nreport: {out / 'report.html'}")


if __name__ == "__main__":
    main()
