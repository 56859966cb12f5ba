# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Each guard's thresholds: what it finds just beyond them, and what it leaves just below."""

from __future__ import annotations

import inspect
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.fixed_sites import Played, federate
from helpers.updates import (
    PARAMETERS,
    SPEC,
    START,
    at_cosine,
    directions,
    honest,
    statistics_of,
    tensors_of,
)

from monai_fairfl import Strategy
from monai_fairfl.errors import ConfigError, FederationError
from monai_fairfl.guards import (
    DEFAULT,
    BatchStatistics,
    Copies,
    Empty,
    Guard,
    Noise,
    NonFinite,
    Opposed,
    Outsized,
    Replayed,
    TooLong,
)
from monai_fairfl.strategies import FedAvg


def guarded_rounds(
    guards: Guard | Sequence[Guard],
    *rounds: Mapping[str, np.ndarray],
    strategy: Strategy | None = None,
    buffers: Mapping[str, Mapping[str, torch.Tensor]] = {},
    samples: Mapping[str, int] = {},
    start: Mapping[str, torch.Tensor] = START,
) -> Played:
    """Federate sites with these updates, client -> flat vector, of a model with statistics.

    Args:
        guards: of the federation.
        rounds: client -> flat update, for each round.
        strategy: FedAvg with equal weights where it is not given.
        buffers: client -> its statistics; usual ones where a client is not named.
        samples: client -> images.
        start: the first model.
    """
    fields: dict[str, dict[str, Any]] = {}
    for name in set[str]().union(*rounds):
        sent = buffers.get(name, statistics_of())
        fields[name] = {"buffers": sent, "num_samples": samples.get(name, 100)}
    given = [{name: tensors_of(one) for name, one in of_round.items()} for of_round in rounds]
    with tempfile.TemporaryDirectory() as folder:
        return federate(
            strategy or FedAvg("uniform"),
            Path(folder),
            given,
            start=start,
            spec=SPEC,
            fields=fields,
            guards=[guards] if isinstance(guards, Guard) else guards,
        )


def verdicts(played: Played) -> dict[str, list[tuple[str, str]]]:
    """client -> guard and action of each verdict in the last round."""
    found = {}
    for client, of_client in played.rounds[-1]["verdicts"].items():
        found[client] = [(one["guard"], one["action"]) for one in of_client]
    return found


def verdict(played: Played, client: str) -> Any:
    """The only verdict on a client in the last round."""
    [found] = played.rounds[-1]["verdicts"][client]
    return found


def lengths(played: Played) -> dict[str, float]:
    """client -> length of the update that the strategy saw."""
    gram = played.rounds[-1]["gram"]
    return dict(zip(gram["clients"], np.sqrt(np.diag(np.array(gram["whole"]))), strict=True))


NAMES = "ABCDE"
QUARANTINE = "quarantine"


def with_one(client: str, update: Any, names: str = NAMES) -> dict[str, Any]:
    """Honest updates of length 1 with the same cosine for every pair; one is another."""
    return {**honest(names), client: update}


def times(factor: float, client: str = "C", names: str = NAMES) -> dict[str, Any]:
    updates = honest(names)
    return {**updates, client: factor * updates[client]}


def apart_from(direction: np.ndarray, seed: int = 0) -> np.ndarray:
    """A unit vector at a right angle to a unit vector and to honest updates."""
    other = directions(30, seed)[-1]
    other = other - (other @ direction) * direction
    return other / np.linalg.norm(other)


# ---- numbers that are no update


def test_what_is_not_finite_is_quarantined_and_its_tensor_named() -> None:
    update = honest(NAMES)["B"]
    update[7] = -math.inf
    played = guarded_rounds(NonFinite(), with_one("B", update))
    assert verdicts(played) == {"B": [("NonFinite", QUARANTINE)]}
    assert "conv.weight" in played.rounds[0]["missing"]["B"]
    buffers = {name: statistics_of() for name in NAMES}
    buffers["C"] = {**statistics_of(), "norm.running_mean": torch.tensor([-math.inf] * 4)}
    played = guarded_rounds(NonFinite(), honest(NAMES), buffers=buffers)
    assert verdicts(played) == {"C": [("NonFinite", QUARANTINE)]}


def test_huge_finite_updates_are_outsized_beside_the_others_and_the_model() -> None:
    evidence = verdict(guarded_rounds(Outsized(), times(1e30, "B")), "B")["evidence"]
    assert evidence["length"] == pytest.approx(1e30, rel=1e-4)
    assert evidence["median_of_others"] == pytest.approx(1, rel=1e-4)
    # It is a thousand times as long as the others, and longer than the model.
    longer = {name: 40 * tensor for name, tensor in START.items()}
    for factor, start, found in ((990, START, []), (1010, START, ["B"]), (1010, longer, [])):
        played = guarded_rounds(Outsized(), times(factor, "B"), start=start)
        assert list(verdicts(played)) == found
    # An honest update beside those who sent next to nothing stays.
    updates = {name: 1e-9 * one for name, one in honest(NAMES).items()}
    assert verdicts(guarded_rounds(Outsized(), {**updates, "B": honest(NAMES)["B"]})) == {}


# ---- updates that are too short or too long


def test_an_update_far_shorter_than_the_others_is_empty() -> None:
    alone = {"A": 0 * honest("A")["A"]}
    short = {**times(1e-5, "B", "ABC"), **alone}
    end = {client: 1e-6 * update for client, update in honest(NAMES).items()}
    for updates, found in (
        (times(0.9e-3), "C"),
        (times(1.1e-3), ""),
        (short, "AB"),  # the median is of the others of each
        (end, ""),  # at the end of a schedule nobody stands out
        # Of two clients only one without any length is empty.
        (times(1e-5, "A", "AB"), ""),
        (times(0.0, "A", "AB"), "A"),
    ):
        assert "".join(verdicts(guarded_rounds(Empty(), updates))) == found


def test_a_long_update_is_cut_to_the_median_of_the_others() -> None:
    played = guarded_rounds(TooLong(), times(6.1))
    found = verdict(played, "C")
    assert (found["action"], found["factor"]) == ("clip", pytest.approx(1 / 6.1))
    assert list(lengths(played).values()) == pytest.approx([1.0] * 5, abs=1e-5)
    # A tiny update does not make the longer of two others too long; of two clients none is.
    tiny = honest("ABC")
    tiny = {"A": 3.3 * tiny["A"], "B": tiny["B"], "C": 0.005 * tiny["C"]}
    for updates in (times(5.9), tiny, times(900, "A", "AB")):
        assert verdicts(guarded_rounds(TooLong(), updates)) == {}


# ---- directions


def against(cosine: float, names: str = NAMES, agreement: float = 0.5) -> dict[str, Any]:
    """All but the last agree; the last is at a cosine to their mean."""
    updates = honest(names, agreement)
    others = sum(updates[client] for client in names[:-1])
    mean = others / np.linalg.norm(others)
    return {**updates, names[-1]: at_cosine(cosine, mean, apart_from(mean))}


def test_an_update_against_all_others_is_opposed_and_the_honest_outlier_is_not() -> None:
    for updates, found in (
        (against(-0.51), ["E"]),
        (against(-0.49), []),
        # Beside fewer than four others, or others that disagree, nobody is judged.
        (against(-1.0, "ABCD"), []),
        (against(-1.0, NAMES, 0.29), []),
    ):
        assert list(verdicts(guarded_rounds(Opposed(), updates))) == found


def random_update(seed: int) -> np.ndarray:
    values = np.random.default_rng([seed, 7]).normal(size=PARAMETERS)
    return values / np.linalg.norm(values)


def test_random_numbers_of_the_usual_length_are_noise() -> None:
    evidence = verdict(guarded_rounds(Noise(), with_one("C", random_update(0))), "C")["evidence"]
    assert evidence["in_common"] < 4 < 40 < evidence["among_others"]
    # A little in common is enough, and its sign does not count.
    total = sum(honest(NAMES).values())
    common = -total / np.linalg.norm(total)
    outlier = at_cosine(0.15, common, random_update(0))
    # Where the others have nothing in common nobody is noise.
    unrelated = dict(zip(NAMES, directions(5), strict=True))
    for updates in (with_one("C", outlier), unrelated):
        assert verdicts(guarded_rounds(Noise(), updates)) == {}
    # Two copies of the same noise do not vouch for each other.
    noise = random_update(1)
    played = guarded_rounds(DEFAULT, {**honest(NAMES), "X": noise, "Y": noise})
    assert verdicts(played) == dict.fromkeys("XY", [("Noise", QUARANTINE)])


# ---- copies


def copied(cosine: float, agreement: float = 0.3) -> dict[str, Any]:
    """E is at a cosine to A; all other pairs agree less."""
    updates = honest(NAMES, agreement)
    return {**updates, "E": at_cosine(cosine, updates["A"], apart_from(updates["A"]))}


def groups(updates: dict[str, Any]) -> set[str]:
    """The groups of copies that are found."""
    [record] = guarded_rounds(Copies(), updates).rounds
    found = [one for of_client in record["verdicts"].values() for one in of_client]
    assert all(one["action"] == "share" for one in found)
    return {"".join(one["group"]) for one in found}


def test_nearly_the_same_updates_are_one_group() -> None:
    four, eight = honest("ABCD"), honest("ABCDEFGH")
    # Also where most pairs are of copies, of any length.
    for number, client in enumerate("BCDEFGH"):
        eight[client] = eight["H"] * (1 + 0.3 * number)
    for updates, found in (
        (copied(0.95), {"AE"}),
        (copied(0.89), set()),
        ({**four, "C": four["A"], "D": four["B"]}, {"AC", "BD"}),
        (eight, {"BCDEFGH"}),
        # Sites that are alike are no copies.
        (honest(NAMES, 0.7), set()),
        ({**honest(NAMES, 0.96), "E": directions(20)[-1]}, set()),
        ({client: 0 * update for client, update in four.items()}, set()),
    ):
        assert groups(updates) == found


def test_copies_share_one_weight_and_one_credit() -> None:
    samples = {"A": 300, "B": 200, "C": 200, "D": 200, "E": 100}
    [record] = guarded_rounds(Copies(), copied(0.95), strategy=FedAvg(), samples=samples).rounds
    by_hand = {"A": 0.15 / 0.8, "B": 0.25, "C": 0.25, "D": 0.25, "E": 0.05 / 0.8}
    assert record["aggregation"] == pytest.approx(by_hand)
    assert record["contributions"] == pytest.approx(by_hand)
    assert record["missing"] == {}


# ---- statistics of normalisation layers


def judged_statistics(**of_one: dict[str, torch.Tensor]) -> list[str]:
    played = guarded_rounds(BatchStatistics(), honest(NAMES), buffers=of_one)
    found = verdicts(played)
    assert all(one == [("BatchStatistics", QUARANTINE)] for one in found.values())
    return list(found)


def test_impossible_statistics_are_found_and_unusual_ones_pass() -> None:
    # Far from all others: by a factor of 200 in the variance, or 20 standard deviations.
    far: list[dict[str, Any]] = [{"variance": 201.0}, {"variance": 1 / 201}, {"mean": 20.1}]
    for impossible in (*far, {"variance": -1e-6}, {"batches": -1}):
        assert judged_statistics(D=statistics_of(**impossible)) == ["D"]
    usual: list[dict[str, Any]] = [{"variance": 199.0}, {"mean": 19.9}, {"batches": 100_000}]
    for unusual in usual:
        assert judged_statistics(D=statistics_of(**unusual)) == []
    # Channels without variance do not differ.
    dead = {client: statistics_of(variance=10.0**-power) for power, client in enumerate(NAMES, 6)}
    assert judged_statistics(**dead) == []


# ---- replays


def second_round(absent: str = "", **changed: Any) -> dict[str, list[tuple[str, str]]]:
    """Verdicts of a round after one of other honest updates; ``changed``: updates of the second."""
    present = {client: update for client, update in FIRST.items() if client not in absent}
    return verdicts(guarded_rounds(Replayed(), present, {**honest(NAMES, seed=2), **changed}))


FIRST = honest(NAMES, seed=1)
STEP = sum(FIRST.values()) / len(FIRST)
REPLAYED = [("Replayed", QUARANTINE)]


def test_the_last_step_is_found_at_any_length_and_what_only_resembles_it_passes() -> None:
    assert second_round(C=30 * STEP) == {"C": REPLAYED}
    unit = STEP / np.linalg.norm(STEP)
    assert second_round(C=at_cosine(0.85, unit, apart_from(unit, 5))) == {}
    # A client whose reply did not count has received the model all the same.
    others = sum(FIRST[client] for client in "ABDE") / 4
    assert second_round(absent="C", C=others) == {"C": REPLAYED}


def test_what_a_guard_remembers_survives_a_stop(tmp_path: Path) -> None:
    begun = {name: tensors_of(update) for name, update in FIRST.items()}
    second = {**honest(NAMES, seed=2), "C": STEP}
    replayed = {name: tensors_of(update) for name, update in second.items()}
    given: dict[str, Any] = {"start": START, "spec": SPEC, "guards": [Replayed()]}

    def killed(request: Any, reply: Any) -> Any:
        if request.round == 1:
            raise KeyboardInterrupt
        return reply

    rounds = [begun, replayed]
    with pytest.raises(KeyboardInterrupt):
        federate(FedAvg("uniform"), tmp_path, rounds, faults={"A": killed}, **given)
    played = federate(FedAvg("uniform"), tmp_path, rounds, **given)
    assert verdicts(played) == {"C": REPLAYED}


def test_updates_of_the_round_before_are_found() -> None:
    assert second_round(C=3 * FIRST["A"]) == {"C": REPLAYED}
    much_alike = at_cosine(0.999, FIRST["C"], apart_from(FIRST["C"], 5))
    assert second_round(C=much_alike) == {}
    # Where everybody goes on in one direction nobody repeats.
    assert second_round(**FIRST) == {}


# ---- arguments


def test_a_threshold_that_would_guard_nothing_is_refused() -> None:
    for guard in DEFAULT:
        kind: Any = type(guard)
        for argument in inspect.signature(kind).parameters:
            with pytest.raises(ConfigError, match=f"{kind.__name__}.*{argument}"):
                kind(**{argument: math.nan})


def test_where_all_are_quarantined_the_round_says_so() -> None:
    nothing = {client: math.nan * update for client, update in honest("AB").items()}
    with pytest.raises(FederationError, match="quarantined"):
        guarded_rounds(DEFAULT, nothing)
