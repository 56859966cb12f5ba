# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The settings of a run: plain values, their defaults and checks, and what a change means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from monai_fairfl.errors import ConfigError
from monai_fairfl.utils.arguments import (
    BUNDLE,
    JOB,
    LEAD,
    SITE,
    Checked,
    check_value,
    marked,
    setting,
)

# Commands make their options of the table, and must not wait for PyTorch to be loaded.
if TYPE_CHECKING:
    from monai_fairfl.messages import Expected

BUFFER_POLICIES = ("aggregation", "samples", "local")
"""How the server averages buffers, see :meth:`monai_fairfl.replies.Replies.average`."""

RECORDED = "recorded"
"""The ledger's opening record holds the setting, and a resumed run must have the same value."""

COMPARED = "compared"
"""All runs of a comparison have the same value: it decides what a strategy trains."""

FREE = "free"
"""A comparison over seeds and folds may go on with another value, or records it by itself."""


DATA, TRAINING, PROCESSES = "Data", "Training", "Processes and devices"
METHOD, LAST_MILE, SERVER = "Method", "Last mile", "Server"
EVALUATION, OUTPUT = "Evaluation", "Output"


@dataclass(frozen=True)
class RunSettings(Checked):
    """How a :class:`~monai_fairfl.server.federation.Federation` runs, whose keywords these are.

    Settings marked :data:`RECORDED` belong to the experiment and cannot change when a run is
    resumed. All others may, such as the number of rounds. The meanings below are those of
    ``docs/keys.md`` and of the help of commands.

    Args:
        rounds: number of rounds, those of an earlier part of a resumed run included.
        min_clients: fewest clients that must answer each round, and the measurements at the
            end, with an update that no guard refuses; with fewer it is undone.
        retries: how often what was undone is tried again before the run stops, resumably.
        evaluate: what the sites measure in every round beside what the method needs, such
            as `global_score` and `global_loss` of the received model, `local_score` of the
            trained one, `sharpness`.
        final: what each site measures at the end, of the model that it would use and of the
            global one: `score` of validation cases, `test_score` and `test_hd95` of test
            cases; `null`: all that the bundle can measure, `[]`: nothing, and no last mile.
        score_global: whether a site with a reward measures the global model at the end,
            too, and is sent it for that ([what a client
            receives](../methods/cgsv.md#what-a-client-receives)).
        buffers: how buffers, such as the statistics of BatchNorm, are averaged:
            `aggregation` with the method's weights, `samples` by the number of images,
            `local` not at all.
        keep: how many of the newest checkpoints stay on disk during the run.
        seed: seed of the initial model, of each client's training and of the choice of
            clients.
        threads: PyTorch threads of each process; more than one changes the last bits of
            results.
        clients_per_round: clients that are drawn at random for each round, at least
            `min_clients`; `null`: all.
        local_norm: whether normalisation layers never leave a site, as in FedBN; with any
            method.
        record_updates: whether each round's updates are stored for
            [valuations](../valuation.md): one model more than there are sites, for each round.
        groups: name -> sites, such as `{'small': ['HK', 'UCL']}`: a site's configuration
            finds the name of its group as `group`.
        ranges: measurement -> least and largest value that is believed, such as
            `{'global_loss': [-1, 1]}`, in place of [0, 1] for a Dice and [0, 100] for a
            loss.
        samples: site -> images of one local epoch that count, whatever it reports, such as
            `{'HK': 120}`; of any other site the first number that it reports counts.
        adapt_epochs: most epochs for which each site trains the model that it would use
            further at the end, and takes the best one if it gains more than its standard
            error; 0: no last mile.
        adapt_rate: learning rate of the last mile, constant.
        adapt_fuse: whether the model that a site would take, fused with the one that it
            trained alone, is a candidate, too; needs `adapt_epochs`.
        timeout: seconds that an exchange over an engine may take; without an engine it has no
            effect: clients of this machine are waited for. `null`: no limit.
        unasked: whether measurements that no request asked for are taken, too: for clients that are
            scripts and choose their own names.

    Raises:
        ConfigError: when a value is out of range; it names setting, value and range.

    >>> RunSettings(rounds=10, seed=3).evaluate
    ['global_score']
    >>> RunSettings(rounds=0)
    Traceback (most recent call last):
    ...
    monai_fairfl.errors.ConfigError: rounds must be a whole number in [1, inf), got 0
    """

    # In this order the ledger's opening record has them.
    rounds: int = setting(
        MISSING, TRAINING, FREE, allowed="[1, inf)", written=100, by=(LEAD, BUNDLE)
    )
    min_clients: int = setting(2, SERVER, allowed="[1, inf)", by=(LEAD,))
    retries: int = setting(1, SERVER, allowed="[0, inf)")
    timeout: float | None = setting(None, "", allowed="(0, inf)", by=())
    evaluate: Sequence[str] = setting(["global_score"], EVALUATION, RECORDED)
    final: Sequence[str] = setting(["score"], EVALUATION, written=None)
    score_global: bool = setting(True, EVALUATION, RECORDED)
    buffers: str = setting("aggregation", METHOD, RECORDED, COMPARED, allowed=BUFFER_POLICIES)
    keep: int = setting(3, OUTPUT, FREE, allowed="[2, inf)")
    seed: int = setting(0, TRAINING, RECORDED, COMPARED, FREE, allowed=f"({-(2**63)}, {2**63})")
    threads: int = setting(
        1, PROCESSES, RECORDED, COMPARED, allowed="[1, inf)", by=(LEAD, JOB, SITE)
    )
    clients_per_round: int | None = setting(None, SERVER, RECORDED, COMPARED)
    local_norm: bool = setting(False, METHOD, RECORDED, COMPARED)
    record_updates: bool = setting(False, EVALUATION)
    groups: Mapping[str, Sequence[str]] = setting({}, DATA, RECORDED, COMPARED, written=None)
    ranges: Mapping[str, Sequence[float]] = setting({}, SERVER, RECORDED, COMPARED)
    samples: Mapping[str, int] = setting({}, SERVER, RECORDED, COMPARED)
    adapt_epochs: int = setting(0, LAST_MILE, allowed="[0, inf)")
    adapt_rate: float = setting(3e-4, LAST_MILE, allowed="(0, 1)")
    adapt_fuse: bool = setting(False, LAST_MILE)
    unasked: bool = setting(False, "", by=(JOB,))

    def __post_init__(self) -> None:
        from monai_fairfl.messages import MOST_CASES, Range

        super().__post_init__()
        if self.clients_per_round is not None:
            allowed = f"[{self.min_clients}, inf)"
            check_value("clients_per_round", self.clients_per_round, "int", allowed)
        for client, number in self.samples.items():
            check_value(f"samples of {client!r}", number, "int", f"[1, {MOST_CASES}]")
        if self.adapt_fuse and not self.adapt_epochs:
            raise ConfigError("adapt_fuse is a candidate of the last mile: give adapt_epochs, too")

        ranges = {}
        for name, given in self.ranges.items():
            try:
                ranges[name] = list(map(float, given))
                Range(name, *ranges[name])
            except (TypeError, ValueError):
                raise ConfigError(
                    f"ranges: {name!r} must rise within 1e6, such as [-1, 1], got {given!r}"
                ) from None
        object.__setattr__(self, "ranges", ranges)

    @property
    def expected(self) -> Expected:
        """What a server believes of replies."""
        from monai_fairfl.messages import Expected, Range

        ranges = {name: Range(name, *limits) for name, limits in self.ranges.items()}
        return Expected(ranges, self.unasked)

    @property
    def last_mile(self) -> dict[str, float]:
        """Its settings as a request's context has them; empty where there is none."""
        if not self.adapt_epochs:
            return {}
        names = ("adapt_epochs", "adapt_rate", "adapt_fuse")
        return {name: float(getattr(self, name)) for name in names}

    def keywords(self) -> dict[str, Any]:
        """Every setting by its name, as ``Federation`` takes them."""
        return {entry.name: getattr(self, entry.name) for entry in fields(RunSettings)}

    def compared(self) -> dict[str, Any]:
        """The settings that all runs of a comparison share."""
        return marked(self, COMPARED)
