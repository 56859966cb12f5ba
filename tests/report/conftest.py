# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A consortium whose report several files look at."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.made_once import MadeOnce
from helpers.scripted_run import call_sites, train
from matplotlib.figure import Figure

from monai_fairfl.guards import NonFinite
from monai_fairfl.report import write_report
from monai_fairfl.strategies import FedAvg, FedCE, Standalone

EVIL = {
    "elm": "<script>alert(1); window.ran = 1</script>",
    "hazel": "</title></desc></svg><img src=x onerror=alert(2)>",
    "oak": '"><img src=http://127.0.0.1:9/x>',
    "rowan": "</style><style>@import 'http://127.0.0.1:9/y';",
}
"""Hospital -> the name that it has in the folder ``evil``."""


def write_consortium(folder: Path) -> None:
    """Three strategies at four hospitals, of which one is absent once and one sends NaN once."""
    for strategy in (FedAvg(), FedCE(), Standalone()):
        scores, about = {}, {}
        for number, site in enumerate(EVIL):
            dice = 0.513 + 0.0917 * number - 0.0123 * len(strategy.name)
            scores[site] = {"test_score": (dice, 0.0131 + 0.001 * number, 7), "score": dice - 0.01}
            received = [dice / 2, dice / 1.5, dice / 1.2]
            about[site] = {"images": 13 + 8 * number, "measured": {"global_score": received}}
        about["elm"]["away"] = [1]
        about["rowan"]["updates"] = [[1.0, 2.0, 3.0], [float("nan")] * 3, [3.0, 1.0, 2.0]]
        given = {"about": about, "guards": [NonFinite()]}
        train(folder / strategy.name, strategy, scores, 3, **given)
        run = train(folder / "evil" / strategy.name, strategy, scores, 3, **given)
        call_sites(run, {**EVIL, "FedCE": EVIL["elm"]})
    write_report([folder / name for name in ("FedAvg", "FedCE", "Standalone")], folder)
    write_report([folder / "evil"])


DRAWN = ("test_browser.py", "test_page.py", "test_pictures.py")
"""Files that look at drawings."""


@pytest.fixture(autouse=True)
def _undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings take most of a report's time."""
    if request.path.name not in DRAWN:

        def save(figure: Figure, stream: io.StringIO, **given: Any) -> None:
            stream.write("<svg></svg>")

        monkeypatch.setattr(Figure, "savefig", save)


@pytest.fixture(scope="session")
def consortium(made_once: MadeOnce) -> Path:
    """The folder of the report; read only."""
    return made_once("consortium", write_consortium)


@pytest.fixture(scope="session")
def report(consortium: Path) -> dict[str, Any]:
    """Its ``report.json``."""
    found: dict[str, Any] = json.loads((consortium / "report.json").read_text())
    return found
