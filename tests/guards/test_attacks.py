# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""A short form of ``benchmarks/attacks.py``: nobody gains by an attack that guards can see."""

from __future__ import annotations

from functools import cache

import attacks
import pytest
from attackers import ATTACKS, SLEEPS_UNTIL
from attacks import ATTACKER, SITES, STRATEGIES

from monai_fairfl.guards import DEFAULT

pytestmark = pytest.mark.slow  # together they take long, each by itself does not

ROUNDS = 7
SEED = 3
METHODS = ("FedAvg", "FedCE")
NOT_FOR_GUARDS = ("num_samples 1e9", "report of 1e9", "plausible false report")
"""Sample counts and reports are checked where they arrive; no guard looks at them."""

BY_GUARDS = [name for name in ATTACKS if name not in NOT_FOR_GUARDS]


@cache
def honest(method: str, sites: int) -> attacks.Records:
    """The rounds of the first sites without attack."""
    run = attacks.with_federation(STRATEGIES[method], DEFAULT, ROUNDS)
    return run(attacks.clients_of(SITES[:sites], None, SEED, False), SEED)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", BY_GUARDS)
def test_no_attacker_gains(method: str, name: str) -> None:
    attack = ATTACKS[name]
    run = attacks.with_federation(STRATEGIES[method], DEFAULT, ROUNDS)
    rounds = run(attacks.clients_of(SITES, attack, SEED, False), SEED)
    weight, step = attacks.mean_shares(rounds, attacks.attackers_of(attack))

    alone = honest(method, len(attacks.honest_sites_of(attack)))
    hospitals = attacks.honest_sites_of(attack)[-attack.hospitals :]
    honest_weight, honest_step = attacks.mean_shares(alone, hospitals)
    assert weight / honest_weight < 1.05 and step / honest_step < 1.05

    begins = SLEEPS_UNTIL if name == "sleeper" else 0
    found = attacks.verdicts_on(rounds, attacks.attackers_of(attack))
    assert any(begins <= number <= begins + 3 for number in found)
    victims = [attacks.VICTIM] if name == "copy" else []
    innocent = [site for site in SITES if site not in (*attacks.attackers_of(attack), *victims)]
    assert attacks.verdicts_on(rounds, innocent) == []


@pytest.mark.parametrize("method", METHODS)
def test_no_guard_acts_on_an_honest_outlier(method: str) -> None:
    run = attacks.with_federation(STRATEGIES[method], DEFAULT, ROUNDS)
    rounds = run(attacks.clients_of(SITES, None, SEED, True), SEED)
    assert attacks.verdicts_on(rounds, SITES) == []
    free = attacks.with_federation(STRATEGIES[method], (), ROUNDS)
    unguarded = free(attacks.clients_of(SITES, None, SEED, True), SEED)
    assert attacks.mean_shares(rounds, [ATTACKER]) == attacks.mean_shares(unguarded, [ATTACKER])
