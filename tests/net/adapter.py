# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""All that the net knows of the package: names, commands, and where a run keeps what.

``play.py`` plays a checkout through that checkout's own copy of this file. Who renames something
changes this file in the same commit. The names of the rows stay.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import monai_fairfl
from monai_fairfl import Federation, InProcess, ModelSpec, guards, read_ledger, strategies
from monai_fairfl.cli import main

CONTRACT = (
    "Strategy Train Measure Request Reply Replies Estimate ModelSpec Federation FairMonaiAlgo "
    "BundleFederation compose write_report read_ledger"
).split()

# Name in the rows -> how the method is made, in the words of this checkout.
METHODS = {
    "FedAvg samples": "FedAvg()",
    "FedAvg uniform": "FedAvg('uniform')",
    "Standalone": "Standalone()",
    "FedCE paper multi": "FedCE()",
    "FedCE paper sum": "FedCE('sum')",
    "FedCE paper cos": "FedCE('cos')",
    "FedCE paper err": "FedCE('err')",
    "FedCE revised multi": "FedCE(variant='revised')",
    "FedCE revised sum": "FedCE('sum', variant='revised')",
    "FedCE revised cos": "FedCE('cos', variant='revised')",
    "FedCE revised err": "FedCE('err', variant='revised')",
    "FedCE released multi": "FedCE(variant='released')",
    "FedCE released sum": "FedCE('sum', variant='released')",
    "FedCE released cos": "FedCE('cos', variant='released')",
    "FedCE released err": "FedCE('err', variant='released')",
    "CGSV recommended": "CGSV()",
    "CGSV paper": "CGSV(variant='paper')",
    "CGSV released": "CGSV(variant='released')",
    "CGSV shapley": "CGSV(exact=True)",
    "CGSV aggregating": "CGSV(gamma=None)",
    "Fed-LWR recommended": "FedLWR()",
    "Fed-LWR paper": "FedLWR(variant='paper')",
    "Fed-LWR released": "FedLWR(variant='released')",
    "Fed-LWR cosine": "FedLWR(similarity='cosine')",
    "ShapFed recommended": "ShapFed()",
    "ShapFed paper": "ShapFed(variant='paper')",
    "ShapFed released": "ShapFed(variant='released')",
    "ShapFed personalised": "ShapFed(personalised=True)",
    "FedISM recommended": "FedISM()",
    "FedISM paper": "FedISM(variant='paper')",
    "FedISM without SALT": "FedISM(salt=False)",
    "AFL": "AFL()",
    "q-FedAvg": "QFedAvg()",
    "FairFed": "FairFed()",
    "FedGA": "FedGA()",
    "Ditto paper": "Ditto()",
    "Ditto released": "Ditto(variant='released')",
    "CFFL released": "CFFL()",
    "FedCI": "FedCI()",
    "LeaveOneOut": "LeaveOneOut()",
    "average Median": "FedAvg(average=Median())",
    "average TrimmedMean": "FedAvg(average=TrimmedMean())",
    "average ClippedMean": "FedAvg(average=ClippedMean())",
    "weighting Krum": "FedAvg(weighting=Krum())",
    "weighting GeometricMedian": "FedAvg(weighting=GeometricMedian())",
    "weighting Proportional": "ShapFed(weighting=Proportional(2.0))",
    "weighting BySamples": "CGSV(weighting=BySamples())",
    "weighting Uniform": "FedCE(weighting=Uniform())",
    "reward Sparsified": "ShapFed(reward=Sparsified())",
    "reward Mixed": "FedCE('cos', reward=Mixed())",
    "cap": "FedAvg(cap=1.2)",
    "clipped reports": "FedCE(clip_reports=0.5)",
}

PROGRAM = "monai_fairfl"

# Methods of the runs on images, by the name that a run's folder has.
RUNS = ("FedCE", "CGSV", "FedLWR", "ShapFed", "FedISM", "Ditto")

# Name of a command in the rows -> the words that begin it, where they are others.
WORDS: dict[str, list[str]] = {
    "demo-data": ["demo", "--data-only", "--kind", "prostate"],
    "datalist": ["doctor"],
    "bundle": ["bundle", "copy"],
    "adopt": ["bundle", "adopt"],
    "what-if": ["verify", "--what-if"],
    "recipe": ["export"],
    "export-model": ["export"],
    "simulate-flare": ["train", "--engine", "flare"],
    "export-flare": ["export", "--engine", "flare"],
    "flare-policy": ["doctor", "--flare-policy"],
    "simulate-flower": ["train", "--engine", "flower"],
    "export-flower": ["export", "--engine", "flower"],
}

# Name in the rows -> its words when all is well but the folder or name, which does not exist.
COMMANDS: dict[str, list[str]] = {
    "try": ["nowhere"],
    "demo-data": ["--out", "/proc/nowhere"],
    "datalist": ["nowhere"],
    "bundle": ["nothing", "--out", "copy"],
    "adopt": ["nowhere"],
    "train": ["nowhere"],
    "infer": ["nowhere.pt", "nowhere"],
    "evaluate": ["nowhere.pt", "nowhere"],
    "adapt": ["nowhere.pt", "nowhere"],
    "compare": ["nowhere", "--strategy", "FedAvg", "FedCE"],
    "report": ["nowhere"],
    "strategies": ["Nothing"],
    "verify": ["nowhere"],
    "what-if": ["nowhere"],
    "recipe": ["nowhere.pt"],
    "export-model": ["nowhere.pt", "--out", "model.ts"],
    "simulate-flare": ["nowhere", "--bundle", "nowhere"],
    "export-flare": ["nowhere", "--out", "job"],
    "flare-policy": ["nowhere"],
    "simulate-flower": ["nowhere", "--bundle", "nowhere"],
    "export-flower": ["nowhere", "--out", "app"],
    "doctor": ["nowhere"],
}


def names() -> dict[str, list[str]]:
    """Kind -> the public names that there are."""

    def of_module(module: Any, base: type) -> list[str]:
        found = {name: getattr(module, name) for name in module.__all__}
        return sorted(
            name for name, one in found.items() if isinstance(one, type) and issubclass(one, base)
        )

    return {
        "contract": [name for name in CONTRACT if hasattr(monai_fairfl, name)],
        "strategies": of_module(strategies, strategies.Strategy),
        "guards": of_module(guards, guards.Guard),
    }


def command(*words: object) -> tuple[int, Any]:
    """Run a command in this process; its exit code, and its JSON if it printed one."""
    printed = io.StringIO()
    name, *arguments = [str(word) for word in words]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main([*WORDS.get(name, [name]), *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
    try:
        return code, json.loads(printed.getvalue())
    except json.JSONDecodeError:
        return code, None


def model_spec(shapes: Mapping[str, Any], buffers: Sequence[str]) -> ModelSpec:
    """Of a model whose output layer is called head, and whose normalisation norm."""
    layers = {name: name.split(".")[0] for name in shapes}
    norms = tuple(sorted(name for name in (*shapes, *buffers) if name.startswith("norm")))
    return ModelSpec(
        tuple(sorted(shapes)), {}, tuple(sorted(buffers)), layers, ("head", 0), norms=norms
    )


def federate(
    method: str,
    clients: Mapping[str, Callable[[], Any]],
    initial: Callable[[], Any],
    rounds: int,
    folder: Path,
    guarded: bool = False,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Run a federation in this process; what :func:`content` says of each round."""
    known = {name: getattr(strategies, name) for name in strategies.__all__}
    strategy = eval(method, known)
    given = {"guards": guards.DEFAULT if guarded else (), "final": (), **settings}
    Federation(strategy, InProcess(clients), rounds, initial, run_dir=folder, **given).run()
    return content(folder)


def rounds_done(run: Path, method: str) -> int:
    """Rounds that a run under way has recorded."""
    for folder in (run / method, run):
        if (folder / "ledger.jsonl").exists():
            return max(0, (folder / "ledger.jsonl").read_bytes().count(b"\n") - 1)
    return 0


def models(run: Path) -> dict[str, Any]:
    """Name -> tensors of each model that a run left."""
    found = {}
    for path in sorted((run / "models").glob("*.pt")):
        found[path.stem] = torch.load(path, weights_only=True)["model"]
    return found


def content(folder: Path) -> list[dict[str, Any]]:
    """What matters of each round of a run: no formats, versions, times, paths or wording."""
    rounds = []
    for record in read_ledger(folder / "ledger.jsonl"):
        if record["kind"] != "round":
            continue
        verdicts = []
        for client, of_client in sorted(record.get("verdicts", {}).items()):
            verdicts += [[client, one["guard"], one["action"]] for one in of_client]
        of_clients = {
            client: {"": value} if not isinstance(value, dict) else value
            for client, value in record["contributions"].items()
        }
        rounds.append(
            {
                "clients": record["clients"],
                "missing": sorted(record["missing"]),
                "weights": record["aggregation"],
                "contributions": {
                    client: value.get("value", value.get(""))
                    for client, value in of_clients.items()
                },
                "stderr": {client: value.get("stderr") for client, value in of_clients.items()},
                "verdicts": verdicts,
                "digests": record["digests"],
                "measured": record["measurements"],
            }
        )
    return rounds


# ---- ledgers


WHAT_IF = (("without", "birch"), ("strategy", "FedAvg"), ("strategy", "FedCE('sum')"))


def take_ledger(file: Path, run: Path) -> None:
    """Make a run's folder of a committed ledger."""
    run.mkdir(parents=True)
    shutil.copy(file, run / "ledger.jsonl")


def replay(run: Path) -> dict[str, Any]:
    """Whether the recorded weights follow from the recorded replies."""
    code, found = command("verify", run, "--replay", "--json")
    answer: dict[str, Any] = {"exit code": code}
    for of_run in (found or {}).get("runs", {}).values():
        if "replay" in of_run:
            answer["rounds"] = of_run["replay"]["rounds"]
            answer["numbers"] = of_run["replay"]["numbers"]
            answer["problems"] = len(of_run["replay"]["problems"])
    return answer


def what_if(run: Path, kind: str, value: str) -> tuple[int, dict[str, Any]]:
    """Exit code; and of each site the weight and the contribution."""
    code, found = command("what-if", run, f"--{kind}", value, "--json")
    answer: dict[str, Any] = {}
    for site, numbers in (found or {}).get("sites", {}).items():
        for quantity, both in numbers.items():
            answer.setdefault(quantity, {})[site] = both["what_if"]
    return code, answer


def report(run: Path, out: Path | None) -> dict[str, dict[str, Any]]:
    """The numbers of the report of a run; ``out``: where to write it, if it is not written yet."""
    if out is not None:
        command("report", run, "--out", out)
    found: dict[str, dict[str, Any]] = {}
    content = json.loads(((out or run) / "report.json").read_text())
    for name, of_strategy in content["strategies"].items():
        sites = of_strategy["sites"]
        performance = of_strategy["performance"]
        found[f"{name}/Dice"] = {key: performance[key] for key in ("mean", "std", "worst", "gap")}
        for quantity in ("score", "boundary", "against_fedavg"):
            values = {site: (sites[site][quantity] or {}).get("value") for site in sites}
            if any(value is not None for value in values.values()):
                found[f"{name}/{quantity}"] = values
        similarity = of_strategy.get("similarity")
        if similarity:
            of_first = zip(similarity["sites"], similarity["cosines"][0])
            found[f"{name}/similarity to {similarity['sites'][0]}"] = dict(of_first)
    return found


# ---- commands


def fine(data: Path, folder: Path) -> dict[str, list[Any]]:
    """Command -> words with which all is well, of those that need no training."""
    return {
        "demo-data": ["demo-data", "--out", folder / "demo", "--size", 32, 32, 4],
        "datalist": ["datalist", data],
        "bundle": ["bundle", "prostate_mri_segmentation", "--out", folder / "bundle"],
        "strategies": ["strategies", "FedCE"],
        "doctor": ["doctor", data],
    }


def train(
    data: Path,
    out: Path,
    methods: Sequence[str],
    overrides: Mapping[str, Any],
    jobs: int = 1,
    config: Path | None = None,
    rounds: int = 2,
) -> list[Any]:
    """The words of a short training."""
    # The only recipe of the commit that ``before`` names.
    more = ["--recipe", "light", *([] if config is None else ["--settings", config])]
    return [
        *("train", data, "--out", out, "--strategy", *methods, "--rounds", rounds),
        *("--local-epochs", 1, "--jobs", jobs, "--overrides", json.dumps(overrides), *more),
    ]


def with_weights(run: Path, model: Path, change: Callable[[Any], Any]) -> None:
    """Write a run's global model with other weights."""
    content = torch.load(run / "models" / "global.pt", weights_only=True)
    torch.save({**content, "model": change(content["model"])}, model)


def infer(
    model: Path, images: Path, out: Path
) -> tuple[int, dict[str, tuple[dict[str, Any], Path]]]:
    """Exit code; and of each image its measures, and the mask's path."""
    code, found = command("infer", model, images, "--out", out, "--no-pictures", "--json")
    quantities = {
        "millilitres": "millilitres",
        "shape": "shape",
        "vertical_cup_to_disc_ratio": "ratio",
        "disc_pixels": "disc",
        "cup_pixels": "cup",
    }
    cases = {}
    for case in (found or {}).get("cases", ()):
        measured = {name: case[key] for key, name in quantities.items() if key in case}
        cases[case["case"]] = (measured, out / case["mask"])
    return code, cases


def use(run: Path, data: Path, folder: Path) -> dict[str, list[Any]]:
    """Command -> words that use a run."""
    model = run / "FedCE"
    return {
        "verify": ["verify", run],
        "recipe": ["recipe", model],
        "evaluate": ["evaluate", model, data, "--out", folder / "scores"],
        "export-model": ["export-model", model, "--out", folder / "model.ts"],
        "adapt": ["adapt", model, data / "ash", "--epochs", 1, "--out", folder / "adapted"],
    }
