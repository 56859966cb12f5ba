# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Plays a checkout of the package, and writes what came out as rows: name, kind, value, tolerance.

- *exact*: the same on every machine, to 1e-9 of a number. The updates are integers divided by a
  power of two, so no processor rounds their inner products. Committed as ``exact.csv``.
- *near*: two rounds of training, masks and volumes. Committed as ``near.csv``. Between processors
  float32 rounds differently, and Adam makes whole steps of what is left of a gradient that should
  be 0, such as that of a bias before BatchNorm. With vector instructions switched off
  (``ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41``) a weight of FedCE moved by 0.007 and a
  Dice by 0.003: the tolerances are 0.02. Masks come of a network whose weights are set here, and
  which decides between two grey values that lie far apart: there volumes moved by nothing and may
  move by 0.05 ml; labels, counts and exit codes (tolerance 0) never do.
- *bits*: digests of models and ledgers, which only runs on one machine can share. Never committed.

::

    python tests/net/play.py --out rows.csv                    # this checkout
    python tests/net/play.py --checkout ../other --only bits --out rows.csv
    python tests/net/play.py --update                          # write exact.csv and near.csv anew
    python tests/net/play.py --before                          # compare with the commit in `before`

The checkout's own ``tests/net/adapter.py`` knows its names and commands.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.util
import json
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import nibabel
import numpy as np
import torch
from PIL import Image

HERE = Path(__file__).resolve().parent
KINDS = ("exact", "near", "bits")
RELATIVE = 1e-9


class Row(NamedTuple):
    """One number, or a few words and numbers that belong together.

    Args:
        name: from the general to the particular.
        kind: one of :data:`KINDS`.
        value: separated by blanks.
        tolerance: the largest difference of two numbers; empty where ``kind`` says it.
    """

    name: str
    kind: str
    value: str
    tolerance: str = ""


def exact(name: str, *values: object) -> Row:
    return Row(name, "exact", words(values))


def near(name: str, tolerance: float, *values: object) -> Row:
    return Row(name, "near", words(values), f"{tolerance:g}")


def words(values: Iterable[object]) -> str:
    """Values in a row; a mapping as its keys and values, sorted."""
    found: list[str] = []
    for value in values:
        if isinstance(value, Mapping):
            found.append(words(item for pair in sorted(value.items()) for item in pair))
        elif isinstance(value, (list, tuple)):
            found.append(words(value))
        else:
            found.append(f"{value}" if isinstance(value, str) else repr(value))
    return " ".join(word for word in found if word)


# ---- fixed replies


def integers(count: int, most: int, *key: int) -> np.ndarray:
    """Whole numbers from -most to most, by arithmetic that no library decides."""
    start = 1
    for part in key:
        start = (start * 1_103_515_245 + part + 12_345) % 2**31
    numbers = (start + np.arange(count, dtype=np.int64) * 40_503) % 2**31
    for _ in range(3):
        numbers = (numbers * 1_103_515_245 + 12_345) % 2**31
        numbers ^= numbers >> 13
    return numbers % (2 * most + 1) - most


SHAPES = {
    "body.weight": (16, 8, 3, 3),
    "mid.weight": (6, 16),
    "norm.weight": (6,),
    "norm.bias": (6,),
    "head.weight": (3, 6),
    "head.bias": (3,),
}
BUFFERS = ("norm.running_mean", "norm.running_var", "norm.num_batches_tracked")
SIZE = sum(math.prod(shape) for shape in SHAPES.values())
IMAGES = {"ash": 40, "birch": 10, "cedar": 20, "elm": 30}
ROUNDS, ABSENT = 4, ("cedar", 2)
Tensors = dict[str, torch.Tensor]


def tensors_of(vector: np.ndarray, dtype: torch.dtype) -> Tensors:
    """A flat vector as the model's parameters."""
    found, begin = {}, 0
    for name, shape in SHAPES.items():
        size = math.prod(shape)
        found[name] = torch.from_numpy(vector[begin : begin + size]).to(dtype).reshape(shape)
        begin += size
    return found


def statistics_of(number: int, batches: int, dtype: torch.dtype) -> Tensors:
    """BatchNorm's statistics."""
    return {
        "norm.running_mean": torch.from_numpy(integers(6, 15, 7, number) / 16).to(dtype),
        "norm.running_var": torch.from_numpy(1 + integers(6, 15, 8, number) / 32).to(dtype),
        "norm.num_batches_tracked": torch.tensor(batches),
    }


@dataclass
class Site:
    """A client that computes nothing: its update, and what it measures, are fixed numbers.

    Only the score of a model depends on the model.

    Args:
        name: of the client.
        number: from 0.
        received: gets the round, the name and the size of each model that it is sent to train.
        dtype: of the model.
        labelled: classes that it labels; empty: all.
        attack: the guard that is to notice this site.
    """

    name: str
    number: int
    received: list[tuple[int, str, float]] = field(default_factory=list)
    dtype: torch.dtype = torch.float64
    labelled: tuple[bool, ...] = ()
    attack: str = ""
    last: Tensors = field(default_factory=dict)

    def update(self, number: int) -> np.ndarray:
        """One part is the same for all clients of a round, the other is the client's own."""
        most, denominator = (511, 4096) if self.dtype == torch.float64 else (7, 64)
        common = integers(SIZE, most, 1, number // 2)
        own = integers(SIZE, most, 2, self.number, number)
        return (4 * common + (2 + self.number) * own) / denominator

    def answer(self, request: Any) -> Any:
        if (self.name, request.round) == ABSENT:
            raise RuntimeError("away")
        model = {name: tensor.double() for name, tensor in request.weights.items()}
        measured = {name: self.measure(name, request.round, model) for name in request.measure}
        if request.task == "measure":
            return request.reply(measurements=measured)
        size = sum(float(tensor.abs().sum()) for tensor in model.values())
        self.received.append((request.round, self.name, size))
        update = tensors_of(self.update(request.round), self.dtype)
        batches = int(model.get("norm.num_batches_tracked", torch.tensor(0))) + 5
        statistics = statistics_of(self.number, batches, self.dtype)
        update = {name: tensor for name, tensor in update.items() if name in model}
        statistics = {name: tensor for name, tensor in statistics.items() if name in model}
        self.spoil(update, statistics, request)
        images = IMAGES.get(self.name, 25)
        return request.reply(
            update,
            images,
            measurements=measured,
            buffers=statistics,
            num_cases=images // 5,
            num_steps=5,
            labelled=self.labelled,
        )

    def spoil(self, update: Tensors, statistics: Tensors, request: Any) -> None:
        """Attack, in the way that one of the guards is meant for."""
        factors = {"Outsized": 4096.0, "TooLong": 16.0, "Empty": 2.0**-16, "Opposed": -1.0}
        if self.attack in ("Copies", "Opposed"):
            update.update(tensors_of(Site("ash", 0).update(request.round), self.dtype))
        if self.attack in factors:
            update.update({name: factors[self.attack] * one for name, one in update.items()})
        elif self.attack == "Noise":
            update.update(tensors_of(integers(SIZE, 511, 20, request.round) / 256, self.dtype))
        elif self.attack == "NonFinite":
            update["mid.weight"][0, 0] = math.nan
        elif self.attack == "BatchStatistics":
            statistics["norm.running_var"][0] = -1.0
        elif self.attack == "Replayed":
            now = {name: request.weights[name].clone() for name in update}
            update.update({name: now[name] - last for name, last in self.last.items()})
            self.last = now

    def measure(self, name: str, number: int, model: Tensors) -> Any:
        """A number between 0 and 1, of a layer each where it compares features."""
        salt = sum(name.encode())
        if name == "score" or name.startswith("global_score"):
            target = integers(SIZE, 31, 3, self.number) / 16
            flat = [model[tensor].numpy().ravel() for tensor in SHAPES if tensor in model]
            together = np.concatenate(flat)
            return 1 / (1 + float(np.mean((together - target[: len(together)]) ** 2)))
        if name.startswith(("cka", "feature")):
            layers = sorted({tensor.split(".")[0] for tensor in SHAPES})
            alike = integers(len(layers), 30, 4, self.number, number) / 64 + 0.5
            return {**dict(zip(layers, alike.tolist())), "mean": float(alike.mean())}
        return float(integers(1, 30, 5, self.number, number, salt)[0]) / 64 + 0.5


def initial(adapter: Any, dtype: torch.dtype) -> tuple[Tensors, Any]:
    model = tensors_of(integers(SIZE, 31, 6) / 16, dtype)
    return {**model, **statistics_of(9, 0, dtype)}, adapter.model_spec(SHAPES, BUFFERS)


def fixed_run(
    adapter: Any, folder: Path, method: str, names: Sequence[str] = (), **given: Any
) -> tuple[list[dict[str, Any]], list[dict[str, float]]]:
    """Play fixed replies; the rounds, and the size of the model that each client began from."""
    received: list[tuple[int, str, float]] = []
    dtype = given.pop("dtype", torch.float64)
    rounds = given.pop("rounds", ROUNDS)
    of_site = given.pop("of_site", {})
    clients = {}
    for number, name in enumerate(names or IMAGES):
        clients[name] = partial(Site, name, number, received, dtype, **of_site.get(name, {}))
    start = partial(initial, adapter, dtype)
    played = adapter.federate(method, clients, start, rounds, folder, **given)
    sizes: list[dict[str, float]] = [{} for _ in played]
    for number, name, size in received:
        sizes[number][name] = size
    return played, sizes


def play_methods(adapter: Any, folder: Path) -> Iterator[Row]:
    """Weights, contributions and the models that each client received, of every method."""
    variations: list[tuple[str, str, dict[str, Any]]] = [(name, "", {}) for name in adapter.METHODS]
    for name in ("FedAvg samples", "FedCE paper multi", "CGSV recommended", "ShapFed recommended"):
        unlabelled = {"elm": {"labelled": (True, True, False)}}
        variations.append((name, ", a class unlabelled", {"of_site": unlabelled}))
        variations.append((name, ", float32", {"dtype": torch.float32}))
    name = "FedAvg samples"
    variations.append((name, ", buffers by samples", {"buffers": "samples"}))
    variations.append((name, ", local buffers", {"buffers": "local"}))
    variations.append((name, ", local norms", {"local_norm": True}))
    for name, title, given in variations:
        place = folder / str(len(list(folder.iterdir())))
        played, sizes = fixed_run(adapter, place, adapter.METHODS[name], **given)
        yield exact(f"method/{name}{title}/rounds", len(played))
        for number, (record, size) in enumerate(zip(played, sizes)):
            row = f"method/{name}{title}/round {number}"
            yield exact(f"{row}/clients", record["clients"], "missing", record["missing"])
            weights = record["weights"]
            if not any(isinstance(value, Mapping) for value in weights.values()):
                weights = {"the model": weights}
            for layer, values in weights.items():
                yield exact(f"{row}/weights of {layer}", values)
            yield exact(f"{row}/contributions", record["contributions"])
            if any(value is not None for value in record["stderr"].values()):
                yield exact(f"{row}/standard errors", record["stderr"])
            # A mean in float32 is not rounded alike everywhere.
            if title != ", float32":
                yield exact(f"{row}/models received", size)


GUARDS = ("NonFinite", "BatchStatistics", "Outsized", "Copies", "TooLong", "Empty", "Noise")


def play_guards(adapter: Any, folder: Path) -> Iterator[Row]:
    """What the default guards say of honest sites, and of one attack each."""
    sites = ("ash", "birch", "dogwood", "elm", "fir", "yew")
    for name in ("nobody", *GUARDS, "Replayed", "Opposed"):
        of_site = {"yew": {"attack": name}}
        played, _ = fixed_run(
            adapter,
            folder / name,
            adapter.METHODS["FedAvg samples"],
            sites,
            of_site=of_site,
            guarded=True,
            rounds=3,
        )
        for number, record in enumerate(played):
            row = f"guard/{name}/round {number}"
            if name == "Copies":
                judged = any(verdict[1] == name for verdict in record["verdicts"])
                yield exact(f"{row}/found", judged)
                continue
            yield exact(f"{row}/verdicts", record["verdicts"] or "none")
            yield exact(f"{row}/weights", record["weights"])


# ---- ledgers and commands


def play_ledgers(adapter: Any, folder: Path) -> Iterator[Row]:
    """What verify, what-if and report say of committed ledgers."""
    for file in sorted((Path(adapter.__file__).parent / "ledgers").glob("*.jsonl")):
        run = folder / file.stem
        adapter.take_ledger(file, run)
        row = f"ledger/{file.stem}"
        yield exact(f"{row}/replay", adapter.replay(run))
        for question in adapter.WHAT_IF:
            code, answer = adapter.what_if(run, *question)
            asked = f"{row}/what if {' '.join(question)}"
            yield exact(f"{asked}/exit code", code)
            for kind, values in answer.items():
                yield exact(f"{asked}/{kind}", values)
        for name, values in adapter.report(run, run).items():
            yield exact(f"{row}/report/{name}", values)
        changed = folder / "changed" / file.stem
        adapter.take_ledger(file, changed)
        ledger = next(changed.glob("*.jsonl"))
        ledger.write_text(ledger.read_text().replace('"birch"', '"bitch"', 1))
        yield exact(f"{row}/changed/exit code", adapter.replay(changed)["exit code"])


def play_commands(adapter: Any, folder: Path) -> Iterator[Row]:
    """Names, and the exit code of every command."""
    for kind, names in adapter.names().items():
        yield exact(f"names/{kind}", names)
    yield exact("command/--help", adapter.command("--help")[0])
    yield exact("command/unknown", adapter.command("no-such-command")[0])
    for name, arguments in adapter.COMMANDS.items():
        yield exact(f"command/{name}/--help", adapter.command(name, "--help")[0])
        code, _ = adapter.command(name, *arguments, "--no-such-option")
        yield exact(f"command/{name}/wrong option", code)
        yield exact(f"command/{name}/nowhere", adapter.command(name, *arguments)[0])
    prostate = hospitals(folder / "prostate")
    for name, arguments in adapter.fine(prostate, folder).items():
        yield exact(f"command/{name}/fine", adapter.command(*arguments)[0])


# ---- images


def ellipse(shape: Sequence[int], centre: Sequence[float], radii: Sequence[float]) -> np.ndarray:
    """Whether each place of a grid is in an ellipse, or an ellipsoid."""
    axes = np.meshgrid(*(np.arange(size) for size in shape), indexing="ij")
    inside = np.zeros(tuple(shape))
    for axis, middle, radius in zip(axes, centre, radii):
        inside = inside + ((axis - middle) / radius) ** 2
    return inside <= 1


def volume(*key: int, noise: int = 20) -> tuple[np.ndarray, np.ndarray]:
    """A bright gland, and its mask."""
    shape = (40, 36, 6)
    moved = integers(4, 3, *key)
    mask = ellipse(shape, (19.5 + moved[0], 17.3 + moved[1], 2.6), (8 + moved[2], 7, 2.4))
    grey = 200 + integers(mask.size, noise, 30, *key).reshape(shape)
    return (grey + (150 + 20 * key[0]) * mask).astype(np.int16), mask.astype(np.uint8)


def photograph(*key: int) -> tuple[np.ndarray, np.ndarray]:
    """An optic disc and its cup, and their mask: 128 and 255."""
    moved = integers(3, 4, *key)
    disc = ellipse((64, 64), (31.5 + moved[0], 32.2 + moved[1]), (15.3, 14.1))
    cup = ellipse((64, 64), (31.5 + moved[0], 32.2 + moved[1]), (8.4 + moved[2] / 2, 7.2))
    picture = np.zeros((64, 64, 3)) + (90, 40, 20)
    picture[disc], picture[cup] = (220, 90, 60), (240, 220, 150)
    picture += integers(64 * 64 * 3, 10, 31, *key).reshape(64, 64, 3)
    return picture.astype(np.uint8), (128 * disc + 127 * cup).astype(np.uint8)


AFFINE = np.array([[-1.5, 0, 0, 30], [0, -1.5, 0, 20], [0, 0, 3, -8], [0, 0, 0, 1]])
SITES = ("ash", "birch", "cedar")


def hospitals(root: Path) -> Path:
    """Three sites of six, five and four patients with prostate MRI."""
    for number, site in enumerate(SITES):
        (root / site).mkdir(parents=True)
        for case in range(6 - number):
            image, mask = volume(number, case)
            path = root / site / f"Case{case:02d}.nii.gz"
            nibabel.save(nibabel.Nifti1Image(image, AFFINE), path)
            label = path.with_name(f"Case{case:02d}_segmentation.nii.gz")
            nibabel.save(nibabel.Nifti1Image(mask, AFFINE), label)
    return root


def clinics(root: Path) -> Path:
    """Three sites of six, five and four photographs."""
    for number, site in enumerate(SITES):
        for folder in ("images", "masks"):
            (root / site / folder).mkdir(parents=True)
        for case in range(6 - number):
            picture, mask = photograph(number, case)
            Image.fromarray(picture).save(root / site / "images" / f"Case{case:02d}.png")
            Image.fromarray(mask).save(root / site / "masks" / f"Case{case:02d}.png")
        labels = {"background": 0, "disc": [128, 255], "cup": 255}
        (root / site / "dataset.json").write_text(json.dumps({"labels": labels}))
    return root


def analytic(state: Tensors) -> Tensors:
    """Weights of a small UNet that asks whether a channel of the image is above a grey value.

    Prostate MRI goes from 0 to 1; a channel of a photograph has mean 0 and deviation 1. The first
    structure is the gland or the disc, the second the cup.

    The first convolution takes the mean of 3 x 3, the last one interpolates it linearly. So no
    rounding decides about a voxel.
    """
    found = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    found["model.0.adn.N.weight"][:] = found["model.0.adn.N.running_var"][:] = 1.0
    found["model.1.submodule.adn.N.running_var"][:] = found["model.0.adn.A.weight"][:] = 1.0
    line = torch.tensor([0.5, 1.0, 0.5])
    for channel in range(found["model.2.conv.bias"].numel()):
        found["model.0.conv.weight"][channel, channel] = 1 / 9
        found["model.2.conv.weight"][channel, channel] = 32 * torch.outer(line, line)
        found["model.2.conv.bias"][channel] = -32 * (0.43, 1.93)[channel]
    return found


def seen(path: Path) -> tuple[list[int], list[float]]:
    """The values in a mask, and the centre of what they mark: in mm of the patient, or pixels."""
    if path.name.endswith(".nii.gz"):
        nifti = nibabel.load(path)
        values, affine = np.asanyarray(nifti.dataobj), nifti.affine
    else:
        values, affine = np.asarray(Image.open(path)), np.eye(3)
    centre = np.append(np.argwhere(values > 0).mean(axis=0), 1)
    return np.unique(values).tolist(), (affine @ centre)[:-1].tolist()


# How far the same analytic model's measures may differ between processors.
TOLERANCES = {"millilitres": 0.05, "shape": 0, "ratio": 0.02, "disc": 2, "cup": 2}
TINY = {"size": [32, 32], "channels": [4, 8], "batch_size": 2}


def play_bundles(adapter: Any, folder: Path) -> Iterator[Row]:
    """Two rounds of FedAvg and FedCE by each bundle; what is reported, and masks of new images."""
    # Imported here: it imports the package of the checkout that is played.
    sys.path.append(str(HERE.parent))
    from helpers.dicom_series import write_series

    oblique = (math.cos(0.2), math.sin(0.2), 0, 0, 0, -1)
    # One volume in two axis orders; a series along the patient's axes, and an oblique one.
    image, _ = volume(1, 8, noise=0)
    (folder / "scans").mkdir()
    plain = nibabel.Nifti1Image(image, AFFINE)
    nibabel.save(plain, folder / "scans" / "plain.nii.gz")
    turned = plain.as_reoriented(np.array([[2, -1], [0, 1], [1, -1]]))
    nibabel.save(turned, folder / "scans" / "turned.nii.gz")
    for name, along in (("axial", (1, 0, 0, 0, 1, 0)), ("oblique", oblique)):
        write_series(
            folder / "scans" / name,
            image.T,
            orientation=along,
            spacing=(1.5, 1.5),
            origin=(-30, -20, -8),
        )
    (folder / "photographs").mkdir()
    Image.fromarray(photograph(1, 9)[0]).save(folder / "photographs" / "eye.png")
    for bundle, data, images in (
        ("prostate", hospitals(folder / "hospitals"), folder / "scans"),
        ("fundus", clinics(folder / "clinics"), folder / "photographs"),
    ):
        run = folder / f"{bundle}-run"
        overrides = {**TINY, "slices_per_volume": 4} if bundle == "prostate" else TINY
        code, _ = adapter.command(*adapter.train(data, run, ("FedAvg", "FedCE"), overrides))
        yield near(f"{bundle}/train/exit code", 0, code)
        for method in ("FedAvg", "FedCE"):
            for number, record in enumerate(adapter.content(run / method)):
                row = f"{bundle}/{method}/round {number}"
                yield near(f"{row}/weights", 0.02, record["weights"])
                yield near(f"{row}/contributions", 0.02, record["contributions"])
        for name, values in adapter.report(run, None).items():
            yield near(f"{bundle}/report/{name}", 5.0 if "boundary" in name else 0.02, values)
        model = folder / f"{bundle}.pt"
        adapter.with_weights(run / "FedAvg", model, analytic)
        out = folder / f"{bundle}-masks"
        code, cases = adapter.infer(model, images, out)
        yield near(f"{bundle}/infer/exit code", 0, code)
        for name, (measured, mask) in cases.items():
            for quantity, value in measured.items():
                yield near(f"{bundle}/infer/{name}/{quantity}", TOLERANCES[quantity], value)
            values, centre = seen(mask)
            yield near(f"{bundle}/infer/{name}/labels", 0, values)
            yield near(f"{bundle}/infer/{name}/centre", 0.1, centre)
        for name, arguments in adapter.use(run, data, folder / bundle).items():
            yield near(f"{bundle}/{name}/exit code", 0, adapter.command(*arguments)[0])


# ---- bits


def digest(content: Any) -> str:
    """SHA-256 of plain JSON, or of a model's tensors: the numbers to their last bit."""
    if isinstance(content, Mapping) and any(torch.is_tensor(one) for one in content.values()):
        found = hashlib.sha256()
        for name, tensor in sorted(content.items()):
            found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            found.update(tensor.detach().contiguous().cpu().numpy().tobytes())
        return found.hexdigest()
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def train(
    adapter: Any, run: Path, methods: Sequence[str], arguments: Sequence[Any], kill: bool
) -> None:
    """Train in a process of its own; with ``kill`` it is killed once within each method's run."""
    alive = set(methods if kill else ())
    command = [sys.executable, "-W", "ignore", "-m", adapter.PROGRAM, *map(str, arguments)]
    while True:
        with open(os.devnull, "w") as nothing:
            process = subprocess.Popen(
                command, stdout=nothing, stderr=subprocess.PIPE, start_new_session=True
            )
        while process.poll() is None and kill:
            begun = {method for method in alive if adapter.rounds_done(run, method)}
            if begun:
                alive -= begun
                os.killpg(process.pid, signal.SIGKILL)
                break
            time.sleep(0.02)
        _, said = process.communicate()
        if process.returncode == 0:
            return
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"{' '.join(command)} failed:\n{said.decode()}")


def play_bits(adapter: Any, folder: Path) -> Iterator[Row]:
    """Digests of every method's ledger and models: with one worker, with two, and after kills."""
    data = hospitals(folder / "hospitals")
    config = folder / "local_norm.json"
    config.write_text(json.dumps({"local_norm": True}))
    overrides = {**TINY, "slices_per_volume": 4}
    for title, jobs, kill in (("1 worker", 1, False), ("2 workers", 2, False), ("killed", 1, True)):
        for methods, keys in ((adapter.RUNS, None), (("FedAvg",), config)):
            run = folder / title / ("runs" if keys is None else "local norms")
            arguments = adapter.train(data, run, methods, overrides, jobs, keys, rounds=3)
            train(adapter, run, methods, arguments, kill)
            for method in methods:
                of_run = run if len(methods) == 1 else run / method
                row = f"bits/{method}/{title}"
                for number, record in enumerate(adapter.content(of_run)):
                    for name, content in record.items():
                        value = digest(content)
                        yield Row(f"{row}/round {number}/{name}", "bits", value)
                for name, model in adapter.models(of_run).items():
                    yield Row(f"{row}/model {name}", "bits", digest(model))


# ---- rows, compared


def read_rows(path: Path) -> dict[str, Row]:
    """Name -> row."""
    with path.open(newline="") as file:
        rows = [Row(*cells) for cells in csv.reader(file)]
    return {row.name: row for row in rows}


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def moved(old: Row, new: Row) -> bool:
    """Whether a row has another word, or a number that differs by more than is allowed."""
    pairs = old.value.split(), new.value.split()
    if len(pairs[0]) != len(pairs[1]):
        return True
    for before, after in zip(*pairs):
        if before == after:
            continue
        try:
            numbers = float(before), float(after)
        except ValueError:
            return True
        if old.kind == "bits":
            return True
        near_enough = float(old.tolerance) if old.kind == "near" else 1e-12
        relative = 0.0 if old.kind == "near" else RELATIVE
        if not math.isclose(*numbers, rel_tol=relative, abs_tol=near_enough):
            return True
    return False


def differences(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[str]:
    """A line for each row that moved, or that only one side has."""
    lines = []
    for name in sorted({*old, *new}):
        if name not in new:
            lines.append(f"{name}: was {old[name].value}, and is no longer there")
        elif name not in old:
            lines.append(f"{name}: is new: {new[name].value}")
        elif moved(old[name], new[name]):
            lines.append(f"{name}: was {old[name].value}, is {new[name].value}")
    return lines


PARTS: dict[str, tuple[Callable[[Any, Path], Iterator[Row]], ...]] = {
    "exact": (play_methods, play_guards, play_ledgers, play_commands),
    "near": (play_bundles,),
    "bits": (play_bits,),
}


def play(kinds: Sequence[str], adapter_file: Path) -> list[Row]:
    """All rows of some kinds, of the package that this interpreter imports."""
    found = importlib.util.spec_from_file_location("adapter", adapter_file)
    assert found is not None and found.loader is not None
    adapter = importlib.util.module_from_spec(found)
    found.loader.exec_module(adapter)
    # Nothing here outlives the process, and a disk that must be waited for doubles the time.
    os.fsync = lambda descriptor: None  # type: ignore[assignment]
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in kinds:
            for part in PARTS[kind]:
                place = Path(folder, part.__name__)
                place.mkdir()
                os.chdir(place)
                rows += part(adapter, place)
    return rows


def play_with_before(only: Sequence[str]) -> int:
    """Play the commit that the file ``before`` names, and this checkout; 1 if a row moved.

    Args:
        only: further words of both, such as ``--only bits``.
    """
    root = HERE.parents[1]
    commit = (HERE / "before").read_text().split()[0]
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder, "before")
        before.mkdir()
        archive = subprocess.run(
            ["git", "archive", commit], cwd=root, check=True, capture_output=True
        )
        subprocess.run(["tar", "-x"], cwd=before, check=True, input=archive.stdout)
        both = []
        for checkout in (before, root):
            out = Path(folder, "rows.csv")
            words = ["--checkout", checkout, "--out", out, *only]
            subprocess.run([sys.executable, __file__, *words], check=True)
            both.append(read_rows(out))
    old, new = both
    common = {name: old[name] for name in old if name in new}
    lines = differences(common, {name: new[name] for name in common})
    for line in lines:
        print(line)
    only = len({*old, *new}) - len(common)
    print(f"{len(common)} rows compared with {commit}, {len(lines)} differ; {only} have no partner")
    return 1 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--checkout", type=Path, default=HERE.parents[1])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--update", action="store_true", help="write the rows that moved anew")
    parser.add_argument("--before", action="store_true", help="compare with the commit in `before`")
    args = parser.parse_args()
    if args.before:
        return play_with_before(["--only", args.only] if args.only else [])

    # The package comes from the checkout, whichever one is installed.
    checkout = args.checkout.resolve()
    variables = {"PYTHONPATH": str(checkout), "OMP_NUM_THREADS": "1"}
    if any(os.environ.get(name) != value for name, value in variables.items()):
        again = [sys.executable, "-W", "ignore", *sys.argv]
        os.execve(sys.executable, again, {**os.environ, **variables})
    adapter = checkout / "tests" / "net" / "adapter.py"
    kinds = [args.only] if args.only else list(KINDS)
    if args.update:
        kinds = [kind for kind in kinds if kind != "bits"]
    out = None if args.out is None else args.out.resolve()
    logging.disable(logging.WARNING)
    rows = play(kinds, adapter if adapter.exists() else HERE / "adapter.py")
    if out is not None:
        write_rows(out, rows)
    if args.update:
        for kind in kinds:
            file = HERE / f"{kind}.csv"
            old = read_rows(file)
            found = []
            for row in rows:
                if row.kind == kind:
                    known = old.get(row.name, row)
                    found.append(row if moved(known, row) else known)
            write_rows(file, found)
    return 0


if __name__ == "__main__":
    sys.exit(main())
