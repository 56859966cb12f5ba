# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The shipped strategies in words: what their clients compute and send, what a round costs, how to choose one."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from monai_fairfl import strategies
from monai_fairfl.errors import ConfigError
from monai_fairfl.strategies import Strategy

__all__ = ["as_page", "as_table", "describe", "shipped"]


def shipped() -> dict[str, type[Strategy]]:
    """Name -> class of every strategy of the package.

    >>> "FedCE" in shipped(), "Strategy" in shipped()
    (True, False)
    """
    found = {name: getattr(strategies, name) for name in strategies.__all__}
    return {
        name: kind
        for name, kind in found.items()
        if isinstance(kind, type) and issubclass(kind, Strategy) and not inspect.isabstract(kind)
    }


def describe(name: str) -> dict[str, Any]:
    """Everything about one strategy, plain JSON.

    Args:
        name: of its class.

    Returns:
        ``target`` and ``config`` (its ``_target_``), ``summary`` and ``description`` (its docstring), ``arguments``
        (name -> default), and its class attributes: ``paper``, ``estimates``, ``client_does``, ``client_sends``,
        ``phases``, ``cost`` (of a round), ``requires`` (measurements the sites must be able to make),
        ``min_clients``, ``personal``.

    Raises:
        ConfigError: when there is no such strategy; it names those there are.

    >>> describe("FedCE")["config"], describe("FedCE")["arguments"]
    ({'_target_': 'monai_fairfl.strategies.FedCE'}, {'mode': 'multi', 'variant': 'paper'})
    """
    if name not in shipped():
        raise ConfigError(f"unknown strategy {name!r}; known are {', '.join(shipped())}")
    kind, target = shipped()[name], f"monai_fairfl.strategies.{name}"
    description = _plain(inspect.getdoc(kind) or "")
    return {
        "target": target,
        "config": {"_target_": target},
        "summary": description.partition("\n")[0],
        "paper": kind.paper,
        "estimates": kind.estimates,
        "client_does": kind.client_does,
        "client_sends": kind.client_sends,
        "phases": kind.phases,
        "cost": kind.cost,
        "requires": sorted(kind().requires),  # may follow from the arguments
        "min_clients": kind.min_clients,
        "personal": kind.personal,
        "arguments": {key: p.default for key, p in inspect.signature(kind).parameters.items()},
        "description": description,
    }


def as_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Strategies side by side, for a terminal.

    Args:
        found: name -> what :func:`describe` returned.
    """
    table = Table(box=box.HORIZONTALS, show_lines=True, padding=(0, 2, 0, 0), show_edge=False, expand=True)
    for title in ("Strategy", "Each client", "A round costs", "Needs"):
        table.add_column(title, no_wrap=title == "Needs", ratio=None if title == "Needs" else 1)
    for name, entry in found.items():
        phases = "" if entry["phases"] == 1 else f"{entry['phases']} phases: "
        client = f"{entry['client_does']};\nsends {entry['client_sends']}"
        table.add_row(f"{name}\n{entry['paper']}", client, phases + entry["cost"], "\n".join(entry["requires"]) or "–")
    console = Console(width=shutil.get_terminal_size((100, 24)).columns, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    legend = [
        "Needs: what every site must be able to measure. A round is one exchange where no phases are named;",
        "models of coalitions (FedCI, LeaveOneOut) are scored eight at a time.",
    ]
    return "\n".join([*lines, "", *legend, "One strategy in full: monai-fairfl strategies NAME"])


def as_page(name: str, entry: Mapping[str, Any]) -> str:
    """One strategy in full, for a terminal.

    >>> print(as_page("FedAvg", describe("FedAvg")).splitlines()[0])
    FedAvg(weighting='samples', variant='paper')
    """
    arguments = ", ".join(f"{key}={default!r}" for key, default in entry["arguments"].items())
    facts = {
        "paper": entry["paper"],
        "each client": entry["client_does"],
        "sends": entry["client_sends"],
        "its contributions": entry["estimates"] or "its weights; it estimates nobody's contribution",
        "phases": entry["phases"],
        "cost of a round": entry["cost"],
        "needs": ", ".join(entry["requires"]) or "no measurement",
        "clients": f"{entry['min_clients']} or more",
        "in federate.json": f'"strategy": {json.dumps(entry["config"])}',
        "on the command line": f"--strategy#_target_ {entry['target']}",
    }
    rows = [f"{title + ':':<21}{value}" for title, value in facts.items()]
    return "\n".join([f"{name}({arguments})", "", entry["description"], "", *rows])


def _plain(docstring: str) -> str:
    """A docstring without its example and its markup for Sphinx; formulas stay as they are written, in LaTeX.

    >>> _plain("Averages :math:`w` as in :class:`~a.b.FedAvg`, ``q`` times.\\n\\n>>> 1\\n1")
    'Averages w as in FedAvg, q times.'
    """
    text = re.split(r"\n+>>> ", docstring)[0].rstrip()
    text = re.sub(r":(?:class|func|meth|data):`~?(?:[\w.]*\.)?(\w+)`", r"\1", text)
    return re.sub(r"``(.+?)``", r"\1", re.sub(r":math:`([^`]+)`", r"\1", text))
