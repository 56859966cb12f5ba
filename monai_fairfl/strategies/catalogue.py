# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The shipped strategies in words: what they need, what they cost, what their quantities mean."""

from __future__ import annotations

import inspect
import json
import shutil
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from monai_fairfl import strategies
from monai_fairfl.errors import ConfigError, in_words
from monai_fairfl.strategies import Reward, Strategy
from monai_fairfl.strategies.quantities import SCALE, Quantity
from monai_fairfl.strategies.resolver import find, shipped
from monai_fairfl.utils.named_classes import (
    arguments_of,
    concrete_classes,
    first_paragraph,
    plain_docstring,
)

LEGEND = (
    "Needs: what every site must be able to measure. A round is one exchange where no phases are "
    "named;",
    "models of coalitions (FedCI, LeaveOneOut) are scored eight at a time.",
    "One strategy in full: monai-fairfl strategies NAME",
)


def quantity(strategy: str, name: str) -> Quantity | None:
    """How a report shows one of the ``details`` of a ledger's record.

    Args:
        strategy: name of the class, as in the ledger.
        name: of the quantity.

    Returns:
        What the strategy declares; else what a shipped reward does, which any strategy may have
        been given; ``None`` where neither knows it.

    >>> quantity("CGSV", "cosine").axis, quantity("MyStrategy", "kept").axis
    ('Cosine', 'Share')
    >>> quantity("FedAvg", "cosine") is None
    True
    """
    known = shipped()
    if strategy in known and name in known[strategy].quantities:
        return known[strategy].quantities[name]
    return shared_quantities().get(name)


def shared_quantities() -> dict[str, Quantity]:
    """The quantities that a record of any strategy may hold."""
    found = {"scale": SCALE}
    for reward in concrete_classes(strategies, Reward).values():
        found.update(reward.quantities)
    return found


def describe(name: str) -> dict[str, Any]:
    """Everything about one strategy, plain JSON.

    Args:
        name: of a shipped strategy, or the dotted path of another one.

    Returns:
        ``target`` and ``config`` (its ``_target_``), ``summary`` and ``description`` (its
        docstring), ``arguments`` (name -> default), ``needed_arguments`` (names of those without a
        default), and its class attributes: ``paper``, ``estimates``, ``client_does``,
        ``client_sends``, ``trusts``, ``phases``, ``cost`` (of a round), ``requires`` (measurements
        the sites must be able to make), ``min_clients``, ``max_clients``, ``personal``.

    Raises:
        ConfigError: when there is no such strategy, see :func:`find`.

    >>> describe("FedCE")["config"], describe("FedCE")["arguments"]
    ({'_target_': 'monai_fairfl.strategies.FedCE'}, {'mode': 'multi', 'variant': 'paper'})
    """
    kind = find(name)
    target = name if "." in name else f"monai_fairfl.strategies.{name}"
    description = plain_docstring(inspect.cleandoc(kind.__doc__ or ""))
    arguments, needed = arguments_of(kind)
    try:
        requires = _requires(kind, needed)
    except Exception as error:  # whatever a constructor raises
        raise ConfigError(
            f"strategy {name!r} cannot be made with its defaults: {in_words(error)}"
        ) from error
    return {
        "target": target,
        "config": {"_target_": target},
        "summary": first_paragraph(description),
        "paper": kind.paper,
        "estimates": kind.estimates,
        "client_does": kind.client_does,
        "client_sends": kind.client_sends,
        "trusts": kind.trusts,
        "phases": kind.phases,
        "cost": kind.cost,
        "requires": requires,
        "min_clients": kind.min_clients,
        "max_clients": kind.max_clients,
        "personal": kind.personal,
        "arguments": arguments,
        "needed_arguments": needed,
        "description": description,
    }


def _requires(kind: type[Strategy], needed: Sequence[str]) -> list[str]:
    """The measurements that a strategy needs; a property has no value without an instance."""
    # They may follow from the arguments, so an instance is asked where one can be made.
    found: object = kind.requires if needed else kind().requires
    return sorted(found) if isinstance(found, frozenset) else []


def as_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Strategies side by side, for a terminal.

    Args:
        found: name -> what :func:`describe` returned.
    """
    table = Table(
        box=box.HORIZONTALS, show_lines=True, padding=(0, 2, 0, 0), show_edge=False, expand=True
    )
    for title in ("Strategy", "Each client", "A round costs"):
        table.add_column(title, ratio=1)
    table.add_column("Needs", no_wrap=True)
    for name, entry in found.items():
        phases = "" if entry["phases"] == 1 else f"{entry['phases']} phases: "
        table.add_row(
            f"{name}\n{entry['paper']}",
            f"{entry['client_does']};\nsends {entry['client_sends']}",
            phases + entry["cost"],
            "\n".join(entry["requires"]) or "–",
        )
    width = shutil.get_terminal_size((100, 24)).columns
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(table)
    lines = [line.rstrip() for line in captured.get().strip("\n").splitlines()]
    return "\n".join([*lines, "", *LEGEND])


def as_page(name: str, entry: Mapping[str, Any]) -> str:
    """One strategy in full, for a terminal.

    >>> print(as_page("FedAvg", describe("FedAvg")).splitlines()[0])
    FedAvg(weighting='samples')
    >>> print(as_page("FedCI", describe("FedCI")).splitlines()[-3])
    clients:             2 to 10 in a round
    """
    written = [f"{key}={default!r}" for key, default in entry["arguments"].items()]
    arguments = ", ".join([*entry["needed_arguments"], *written])
    estimates = entry["estimates"] or "its weights; it estimates nobody's contribution"
    most = entry["max_clients"]
    limit = "or more" if most is None else f"to {most} in a round"
    facts = {
        "paper": entry["paper"] or "none named",
        "each client": entry["client_does"],
        "sends": entry["client_sends"],
        "the server trusts": entry["trusts"] or "not stated",
        "its contributions": estimates,
        "phases": entry["phases"],
        "cost of a round": entry["cost"],
        "needs": ", ".join(entry["requires"]) or "no measurement",
        "clients": f"{entry['min_clients']} {limit}",
        "in federate.json": f'"strategy": {json.dumps(entry["config"])}',
        "on the command line": f"--strategy {_given_name(entry['target'])}",
    }
    rows = [f"{title + ':':<21}{value}" for title, value in facts.items()]
    title = f"{name.rpartition('.')[2]}({arguments})"
    return "\n".join([title, "", entry["description"] or "(no docstring)", "", *rows])


def _given_name(target: str) -> str:
    """How a user names a strategy: a shipped one by its name alone."""
    return target.removeprefix("monai_fairfl.strategies.")
