# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that use a model: ``infer``, ``evaluate``, ``adapt`` and ``export``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.engines import ENGINES, export_job, job_options
from monai_fairfl.cli.options import (
    LOG,
    Answer,
    add,
    emptied_unless_done,
    number,
    out_folder,
    say,
)
from monai_fairfl.errors import ConfigError, DataError

if TYPE_CHECKING:
    from monai_fairfl.bundle.adaptation import Adaptation

TABLES = ("volumes.json", "ratios.json")
"""Names of the table of an inference run, of volumes and of photographs."""

# --- infer


def infer_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``infer``."""
    add(command, "model")
    what = "folder of NIfTI volumes, DICOM series or photographs"
    command.add_argument("images", metavar="IMAGES", help=what)
    what = "write no picture of each case's outline"
    command.add_argument("--no-pictures", action="store_true", help=what)
    add(command, "--bundle", "--device", "--out", "--verbose")


def infer(args: argparse.Namespace) -> Answer:
    """Segment a folder of images, and say what was found and what to look at.

    The table of cases is also in volumes.csv or ratios.csv, next to the masks. Exit code 3: some
    cases could not be segmented, or lack an output. Exit code 2: no case could be segmented.

    examples:
      monai-fairfl infer runs/fedce scans       # its global model
      monai-fairfl infer runs/fedce/models/elm.pt scans --out masks --no-pictures
    """
    from monai.bundle import ConfigParser

    from monai_fairfl.bundle.configuration import INFERENCE, read_keys
    from monai_fairfl.cli.evaluating import find_model, training_words
    from monai_fairfl.cli.running import MonaiLine, written_overlay
    from monai_fairfl.model_files.recipe import read_recipe
    from monai_fairfl.utils.devices import require_device
    from monai_fairfl.utils.plain_values import object_of_json
    from monai_fairfl.workflow.cases import answer_text
    from monai_fairfl.workflow.recipes import overlay_of

    images = Path(args.images).absolute()
    out = out_folder(args.out, f"infer-{images.name}", new=True)
    if args.device is not None:
        require_device(args.device)
    model, bundle = find_model(args.model, args.bundle)
    file = bundle / INFERENCE
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: write it to segment images (docs/own_bundle.md)")
    if not images.is_dir():
        raise DataError(f"{images} is not a folder: name the folder of the images")
    places = {"bundle_root": bundle, "ckpt_path": model, "dataset_dir": images, "output_dir": out}
    keys: dict[str, Any] = {key: str(place) for key, place in places.items()}
    if args.device is not None:
        keys["device"] = args.device
    config = read_keys(file)
    unknown = keys.keys() - config
    if unknown:
        missing = ", ".join(sorted(unknown))
        raise ConfigError(f"{file} has no {missing}: run it with its own keys, by monai.bundle run")
    if args.no_pictures:
        keys["pictures"] = False
    recipe = read_recipe(model)
    brought = overlay_of(recipe, bundle, ConfigParser(config)) if recipe is not None else {}
    if recipe is not None and (given := recipe.training.get("overrides")):
        say(f"The model was trained with {given}, which the bundle's inference does not have.")
    say(f"Into the folder {out}")
    code = 0
    with emptied_unless_done(out):
        files = [str(file), *written_overlay(brought, out)]
        try:
            MonaiLine(files, keys).run(out / LOG, args.verbose)
        except SystemExit as ended:
            # A configuration ends so where a case was skipped.
            code = int(ended.code or 0)
        for table in [out / name for name in TABLES if (out / name).is_file()]:
            found = object_of_json(table.read_bytes())
            lines = [answer_text(found), training_words(recipe), f"Folder: {out}"]
            return Answer({"folder": str(out), **found}, "\n".join(filter(None, lines)), code)
        # Inference as others write it has no table.
        written = [path for path in out.rglob("*") if path.is_file() and path.name != LOG]
        if not written or code:
            raise ConfigError(f"{out} holds no table of masks: {out / LOG} shows why")
    names = sorted(str(path.relative_to(out)) for path in written)
    text = f"{len(names)} files written.\nFolder: {out}"
    return Answer({"folder": str(out), "files": names}, text)


# --- evaluate


def evaluate_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``evaluate``."""
    add(command, "model")
    what = "one folder per hospital, or one hospital's folder, with labels"
    command.add_argument("folder", metavar="DATA", help=what)
    add(command, "--bundle", "--device", "--out", "--verbose")


def evaluate(args: argparse.Namespace) -> Answer:
    """Score a model on the test cases of hospitals, by Dice and surface distance.

    If the model is in its run's folder, the run's own test cases are scored. Otherwise all cases
    are scored, and the output says so.

    examples:
      monai-fairfl evaluate runs/fedce hospitals        # the test cases of the run's own splits
      monai-fairfl evaluate model.pt hospitals/elm --out scores
    """
    from monai_fairfl.cli.evaluating import evaluation

    data = Path(args.folder).absolute()
    out = out_folder(args.out, f"evaluate-{data.name}", new=True)
    found, text = evaluation(args.model, args.bundle, data, out, args.device, args.verbose)
    return Answer({"folder": str(out), **found}, text)


# --- adapt

LEAST_CASES = 2
"""So many validation cases the standard error of a gain needs."""

TITLES = {"score": "validation Dice", "test_score": "test Dice"}
"""Closing measurement -> its column."""


def adapt_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``adapt``."""
    add(command, "model")
    command.add_argument("folder", metavar="HOSPITAL", help="one hospital's images with labels")
    whole = number("[0, inf)")
    what = "of training, at most (default: 10)"
    command.add_argument("--epochs", type=number("[1, inf)"), default=10, help=what)
    what = "learning rate (default: 0.0003)"
    command.add_argument("--rate", type=number("(0, inf)", "float"), default=3e-4, help=what)
    command.add_argument("--seed", type=whole, default=0, help="of the training (default: 0)")
    what = "training configuration, relative to the bundle (default: the model's)"
    command.add_argument("--config", nargs="+", metavar="FILE", help=what)
    what = "training, validation and test cases (default: as in the run, or else a new split)"
    command.add_argument("--datalist", metavar="FILE", help=what)
    add(command, "--bundle", "--device", "--out", "--verbose")


def adapt(args: argparse.Namespace) -> Answer:
    """Train a finished model further on one hospital's images, and take it only if it gains.

    Each epoch is scored on validation cases, and the best epoch counts. The adapted model is taken
    if its mean gain on these cases is larger than the gain's standard error, which needs at least
    two validation cases: where the data list has fewer, nothing is trained. Nothing leaves the
    hospital.

    examples:
      monai-fairfl adapt runs/fedce hospitals/elm       # a hospital of the run, or another one
      monai-fairfl adapt model.pt elm --epochs 20 --out elm-adapted
    """
    from monai_fairfl.bundle.adaptation import adapt_model
    from monai_fairfl.bundle.configuration import takes_any_folder
    from monai_fairfl.cli.evaluating import find_model, site_of_run
    from monai_fairfl.cli.running import output_into
    from monai_fairfl.data.datalist import cases_of_list
    from monai_fairfl.data.layouts import find, name_of_site, sites_at
    from monai_fairfl.messages import to_json
    from monai_fairfl.utils.devices import best_device, require_device
    from monai_fairfl.utils.words import count_words

    device = args.device or best_device()
    require_device(device)
    model, bundle = find_model(args.model, args.bundle)
    hospital = Path(args.folder).absolute()
    name = name_of_site(hospital)
    out = out_folder(args.out, f"adapt-{name}", new=True)
    of_run = site_of_run(model, name)
    datalist, split = out / "datalist.json", "A new split"
    if args.datalist is not None:
        datalist, split = Path(args.datalist).absolute(), "Your split"
        if not datalist.is_file():
            fix = f"monai-fairfl doctor {hospital} --write-lists {args.datalist} writes one"
            raise ConfigError(f"--datalist {args.datalist}: there is no such file. {fix}")
    elif of_run is not None:
        datalist, split = of_run.datalist, f"The split {of_run.split(hospital)}"
    origin = f"{split}: {datalist}"
    # How many cases a new split has is known when the training begins.
    if datalist.is_file():
        listed = len(cases_of_list(datalist, hospital, ("validation",)))
        if listed < LEAST_CASES:
            nothing: dict[str, Any] = {"gain": None, "epochs": 0, "before": {}, "after": {}}
            return Answer(
                nothing | {"model": None}, f"{_too_few(listed)}\nNothing was trained.\n{origin}"
            )
    elif not takes_any_folder(bundle):
        # What is no hospital's folder is refused before anything is written.
        sites = sites_at(hospital)
        if hospital not in sites.values():
            raise DataError(f"{hospital} holds several hospitals: name one of {[*sites.values()]}")
        find(hospital)
    say(f"{name}: at most {count_words(args.epochs, 'epoch')} at a rate of {args.rate:g} ...")
    with emptied_unless_done(out), output_into(out / LOG, args.verbose):
        found = adapt_model(
            model,
            bundle,
            hospital,
            out,
            datalist_file=datalist,
            epochs=args.epochs,
            rate=args.rate,
            seed=args.seed,
            device=device,
            config=args.config,
            overrides=None if of_run is None else of_run.settings(),
        )
    plain = {"gain": found.gain, "epochs": found.epochs}
    data = to_json({**plain, "before": found.before, "after": found.after})
    data["model"] = str(found.model) if found.model else None
    return Answer(data, f"{_verdict(found)}\n{origin}")


def _verdict(found: Adaptation) -> str:
    """What further training brought, whether the adapted model is taken, and why."""
    from monai_fairfl.messages import value_of
    from monai_fairfl.utils.tables import text_of_table
    from monai_fairfl.utils.words import count_words

    names = [name for name in TITLES if name in found.before and name in found.after]
    rows = []
    for model, scores in (("given", found.before), ("adapted", found.after)):
        rows.append([model, *[f"{value_of(scores[name]):.3f}" for name in names]])
    table = text_of_table(["model", *[TITLES[name] for name in names]], rows)
    gain = found.gain
    if gain.n < LEAST_CASES:
        return f"{table}\n{_too_few(gain.n)}"
    measured = (
        f"on {gain.n} validation cases it gains {gain.value:+.3f} ± {gain.stderr or 0:.3f} Dice"
    )
    if found.model is None:
        return f"{table}\nNot taken: {measured}, no more than its error. Use the given model."
    return (
        f"{table}\nTaken: {measured} after {count_words(found.epochs, 'epoch')}.\nThe epoch was "
        "chosen on these cases, so this gain is too high: test cases give the honest one.\n"
        f"Model: {found.model}"
    )


def _too_few(cases: int) -> str:
    """Say that so many validation cases cannot judge a model, and what to do."""
    return (
        f"Not taken: two validation cases are needed that can judge, and there are {cases}. Label "
        "more cases, or name a list with more of them: --datalist FILE"
    )


# --- export


def export_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``export``."""
    what = "model file, or the folder of a run; with --engine the bundle that is trained"
    command.add_argument("what", metavar="MODEL|BUNDLE", help=what)
    what = "new file .ts or .onnx, or new folder for a bundle with the model, or for the job"
    command.add_argument("--out", metavar="PATH", help=f"{what} (default: show the recipe)")
    add(command, "--bundle")
    what = "write a federation as a job for this engine"
    command.add_argument("--engine", choices=ENGINES, help=what)
    job_options(command)


def export(args: argparse.Namespace) -> Answer:
    """Write a model as TorchScript, ONNX or a bundle, or a federation as a job for an engine.

    A model goes with the recipe of its training: the values that inference takes from it. Without
    --out the command shows this recipe. A job holds the seeded initial model.

    examples:
      monai-fairfl export runs/fedce                      # how its model was trained
      monai-fairfl export runs/fedce --out prostate.ts
      monai-fairfl export prostate_mri_segmentation --engine flare --strategy FedCE --out job
      monai-fairfl export my_bundle --engine flower --strategy CGSV --local-epochs 2 --out app
    """
    if args.engine is not None:
        return export_job(args)
    from monai_fairfl.cli.evaluating import find_model, model_file
    from monai_fairfl.model_files.recipe import read_recipe
    from monai_fairfl.workflow.export import export_model

    if args.out is None:
        recipe = read_recipe(model_file(args.what))
        if recipe is None:
            raise ConfigError(f"{args.what} has no recipe: give its values (docs/use_model.md)")
        plain = recipe.state_dict()
        return Answer({"recipe": plain}, json.dumps(plain, indent=4, ensure_ascii=False))
    model, bundle = find_model(args.what, args.bundle)
    found = export_model(model, args.out, bundle)
    values = ", ".join(f"{key} {value}" for key, value in found.values.items())
    data = {"file": str(Path(args.out)), "recipe": found.state_dict()}
    return Answer(data, f"{args.out}: trained with {values}")
