# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that use a model: ``infer``, ``evaluate``, ``adapt`` and ``export``."""

from __future__ import annotations

import argparse
import csv
import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from monai.bundle import ConfigParser

from monai_fairfl.bundle import adaptation, configuration
from monai_fairfl.bundle.adaptation import adapt_model
from monai_fairfl.bundle.checks import check_sites
from monai_fairfl.bundle.configuration import INFERENCE, read_keys
from monai_fairfl.bundle.shipped import bundle_names, find_bundle, locate_bundle
from monai_fairfl.bundle.site import OF_FILES, check_files
from monai_fairfl.cli.answers import LOG, Answer, emptied_unless_done, out_folder, say
from monai_fairfl.cli.running import output_into, run_line, written_overlay
from monai_fairfl.cli.training import export_job
from monai_fairfl.data.checks import Summary
from monai_fairfl.data.datalist import cases_of_list, write_datalist
from monai_fairfl.data.layouts import find_cases, name_and_folder, sites_at, text_of_files
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import to_json, value_of
from monai_fairfl.model_files import ModelRecipe, read_recipe
from monai_fairfl.report.collect import find_runs, read_records
from monai_fairfl.run.resuming import SETTINGS, recorded_config
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.devices import best_device, require_device
from monai_fairfl.utils.files import private_folder
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.utils.tables import text_of_table
from monai_fairfl.workflow import answer_text
from monai_fairfl.workflow.export import export_model
from monai_fairfl.workflow.recipes import overlay_of

# --- infer


def infer(args: argparse.Namespace) -> Answer:
    """Carry out ``infer``."""
    images = Path(args.images).absolute()
    out = out_folder(args.out, f"infer-{images.name}", new=True)
    model, bundle, recipe = find_model(args.model, args.bundle, args.device or "cpu")
    file = bundle / INFERENCE
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: write it to segment images (docs/own_bundle.md)")
    keys: dict[str, Any] = {"bundle_root": bundle, "ckpt_path": model}
    keys |= {"dataset_dir": images, "output_dir": out}
    if args.device is not None:
        keys["device"] = args.device
    config = read_keys(file)
    if missing := sorted(keys.keys() - config):
        raise ConfigError(f"{file} has no {', '.join(missing)}: run it by monai.bundle run")
    if args.no_pictures:
        keys["pictures"] = False
    brought = overlay_of(recipe, bundle, ConfigParser(config))
    if given := recipe.training.get("overrides"):
        say(f"The model was trained with {given}, which the bundle's inference does not have.")
    code = 0
    with emptied_unless_done(out):
        files = [str(file), *written_overlay(brought, out)]
        try:
            run_line(files, keys, out / LOG, args.verbose)
        except SystemExit as ended:
            # A configuration ends so where a case was skipped.
            code = int(ended.code or 0)
        for table in [*out.glob("volumes.json"), *out.glob("ratios.json")]:
            found = object_of_json(table.read_bytes())
            text = f"{answer_text(found)}\nFolder: {out}"
            return Answer({"folder": str(out), **found}, text, code)
        # Inference as others write it has no table.
        written = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name != LOG]
        names = [str(path.relative_to(out)) for path in written]
        if not names or code:
            raise ConfigError(f"{out} holds no table of masks: {out / LOG} shows why")
    return Answer({"folder": str(out), "files": names}, f"{len(names)} files written to {out}")


# --- adapt


def adapt(args: argparse.Namespace) -> Answer:
    """Carry out ``adapt``."""
    check_value("--epochs", args.epochs, "int", "[1, inf)")
    check_value("--rate", args.rate, "float", "(0, inf)")
    device = args.device or best_device()
    model, bundle, _ = find_model(args.model, args.bundle, device)
    hospital = Path(args.folder).absolute()
    name = name_and_folder(hospital)[0]
    out = out_folder(args.out, f"adapt-{name}", new=True)
    of_run = site_of_run(model, name)
    datalist = out / "datalist.json"
    if args.datalist is not None:
        datalist = args.datalist.resolve(strict=True)
    elif of_run is not None:
        datalist = of_run.datalist
    with emptied_unless_done(out), output_into(out / LOG, args.verbose):
        found = adapt_model(
            model,
            bundle,
            hospital,
            out,
            datalist_file=datalist,
            epochs=args.epochs,
            rate=args.rate,
            device=device,
            overrides={} if of_run is None else of_run.values,
        )
    lines = []
    for name, after in found["after"].items():
        before = value_of(found["before"][name])
        lines.append(f"{name}: {before:.3f}, adapted {value_of(after):.3f}")
    gain = found["gain"]
    lines += [
        f"Mean gain on {gain.n} validation cases: {gain.value:+.3f} ± {gain.stderr or 0:.3f}",
        f"Taken: {found['model']}" if found["model"] else "Not taken: use the given model",
        f"The split: {datalist}",
    ]
    return Answer(to_json(found), "\n".join(lines))


# --- export


def export(args: argparse.Namespace) -> Answer:
    """Carry out ``export``."""
    if args.engine is not None:
        return export_job(args)
    if args.out is None:
        recipe = read_recipe(model_file(args.what))
        if recipe is None:
            raise ConfigError(f"{args.what} has no recipe: give its values (docs/use_model.md)")
        plain = recipe.state_dict()
        return Answer({"recipe": plain}, json.dumps(plain, indent=4, ensure_ascii=False))
    model, bundle, _ = find_model(args.what, args.bundle)
    found = export_model(model, args.out, bundle)
    values = ", ".join(f"{key} {value}" for key, value in found.values.items())
    data = {"file": args.out, "recipe": found.state_dict()}
    return Answer(data, f"{args.out}: trained with {values}")


# --- the model that a command names, its bundle, and the run that trained it


def model_file(given: str) -> Path:
    """The model that was given: its file, or the global model of a run's folder.

    Of a comparison's folder it is that of its only federation. Where every hospital trained alone,
    there is no trained global model.

    Raises:
        ConfigError: when there is none, or several.
    """
    path = Path(given).absolute()
    if path.is_file():
        return path
    runs = [run for run in find_runs([path]) if read_records(run)[0]["strategy"] != "Standalone"]
    if len(runs) != 1:
        names = ", ".join(map(str, runs)) or "Standalone's, where each hospital has a model"
        raise ConfigError(f"{path} must hold one run of a federation, and holds {names}: name one")
    model = runs[0] / adaptation.GLOBAL_MODEL
    if not model.is_file():
        raise ConfigError(f"{model} does not exist: let the run end, or name a hospital's model")
    return model


def find_model(
    given: str, bundle: str | None, device: str = "cpu"
) -> tuple[Path, Path, ModelRecipe]:
    """The model that was given, the bundle that uses it, and its recipe, empty if it has none.

    Args:
        given: see :func:`model_file`.
        bundle: name or folder; ``None``: the shipped one that trained the model.
        device: that is to use it.

    Raises:
        ConfigError: there is no such model or device; it does not say its bundle, or that is not
            shipped.
    """
    require_device(device)
    model = model_file(given)
    recipe = read_recipe(model) or ModelRecipe("", "", {})
    if bundle is not None:
        return model, locate_bundle(bundle), recipe
    for shipped in map(find_bundle, bundle_names()):
        if configuration.read_keys(shipped / configuration.METADATA).get("name") == recipe.bundle:
            return model, shipped, recipe
    trained_by = recipe.bundle or "an unknown bundle, since it has no recipe"
    raise ConfigError(f"{model} was trained by {trained_by}: name its folder with --bundle")


class Cases(NamedTuple):
    """Of a hospital: its data list, in words what that is, and its own values of the configuration.

    No recipe has the values with which a run read its files, such as ``stereo``.
    """

    datalist: Path
    split: str
    values: dict[str, Any]


def site_of_run(model: Path, site: str) -> Cases | None:
    """What the run that a model is of had of a site; ``None``: there was none."""
    # The run that holds the model, at whatever depth, or the comparison that it is of. Without a
    # run beside them, data lists are of no run: ``monai-fairfl doctor`` wrote them.
    for folder in model.parents:
        try:
            config = recorded_config(folder)
        except ConfigError:  # of another program
            continue
        own = config.get("sites", {}).get(site, {})
        datalist = Path(own.get("datalist_file") or folder / "datalists" / f"{site}.json")
        if datalist.is_file() and (folder / SETTINGS).is_file():
            overrides = {**config.get("overrides", {}), **own}
            values = {name: overrides[name] for name in OF_FILES if name in overrides}
            return Cases(datalist, "the test cases of the run; its other cases are refused", values)
    return None


# --- its scores

UNTESTED = "it is no test case"


def evaluate(args: argparse.Namespace) -> Answer:
    """Carry out ``evaluate``: all files are checked before a hospital is scored.

    The answer has ``sites``: site -> ``cases`` (image, and each score; ``None``: it has none) and
    ``split``; and ``files``: what became of them.
    """
    data = Path(args.folder).absolute()
    out = out_folder(args.out, f"evaluate-{data.name}", new=True)
    device = args.device or best_device()
    model, bundle, recipe = find_model(args.model, args.bundle, device)
    if configuration.read_keys(bundle / configuration.FEDERATE).get("any_folder"):
        raise ConfigError(f"{bundle} lists its own cases: score it by monai.bundle run")
    folders = sites_at(data)
    tested: dict[str, Cases] = {}
    calls = {}
    found = {}
    with emptied_unless_done(out):
        for site, folder in folders.items():
            of_site = site_of_run(model, site) or _all_cases(folder, out / "datalists", site)
            if own := recipe.sites.get(site):
                values = {**own, "own_values": list(own), **of_site.values}
                of_site = of_site._replace(values=values)
            tested[site] = of_site
            given = {**recipe.values, **of_site.values}
            calls[site] = partial(_check_tested, bundle, folder, given, of_site.datalist)
        counts = check_sites(folders, calls, data)[1]
        training = configuration.train_config(bundle, {})
        brought = overlay_of(recipe, bundle, training)
    configs = bundle / "configs"
    # A hospital's tables stay also where a later one ends in an error.
    for site, folder in folders.items():
        say(f"{site} ...")
        datalist, split, values = tested[site]
        keys: dict[str, Any] = {"bundle_root": bundle, "ckpt_path": model}
        keys |= {"dataset_dir": folder, "datalist_file": datalist}
        keys |= {"output_dir": out / site, "device": device}
        keys |= adaptation.values_of_list(datalist, training) | values
        if "check_data" in training:
            # That was done for all hospitals.
            keys["check_data"] = False
        between = written_overlay(brought, private_folder(out / site))
        files = [str(configs / "train.json"), *between, str(configs / "evaluate.json")]
        run_line(files, keys, out / LOG, args.verbose)
        found[site] = {"cases": scores_in(out / site), "split": split}

    answer = to_json({"folder": str(out), "sites": found, "files": counts})
    text = f"{evaluation_text(found)}\nFolder: {out}"
    # Another check than ours counts no files.
    return Answer(answer, f"{text}\n{text_of_files(counts, UNTESTED)}" if counts["used"] else text)


def _check_tested(bundle: Path, folder: Path, values: Mapping[str, Any], datalist: Path) -> Any:
    """Check the test cases of a hospital; its other cases are refused."""
    found = check_files(bundle, folder, values, cases_of_list(datalist, folder, ("testing",)))
    if isinstance(found, Summary):
        for case in cases_of_list(datalist, folder, ("training", "validation")):
            found.refused |= dict.fromkeys((case["image"], case["label"]), UNTESTED)
    return found


def _all_cases(hospital: Path, lists: Path, site: str) -> Cases:
    """All cases of a hospital of which no run is known, in a new list."""
    parts = {"training": [], "validation": [], "testing": find_cases(hospital)}
    file = private_folder(lists) / f"{site}.json"
    write_datalist(file, name_and_folder(hospital)[1], parts, {})
    split = "all cases: where the model was trained on some, their scores flatter it"
    return Cases(file, split, {})


# --- tables


def scores_in(folder: Path) -> dict[str, dict[str, float]]:
    """The scores of all tables that MONAI's ``MetricsSaver`` wrote.

    Returns:
        Image -> name of a score -> its value, not a number where the case has none.

    >>> scores_in(Path("no/such/folder"))
    {}
    """
    scores: dict[str, dict[str, float]] = {}
    for file in sorted(folder.glob("*_raw.csv")):
        name = file.name.removesuffix("_raw.csv")
        with file.open(newline="", encoding="utf-8") as table:
            titles, *rows = csv.reader(table)
        number = len(titles) - 1
        for row in rows:
            # MONAI quotes nothing: a path with a comma is several cells. The mean comes last.
            scores.setdefault(",".join(row[:-number]), {})[name] = float(row[-1])
    return scores


def evaluation_text(found: Mapping[str, Mapping[str, Any]]) -> str:
    """A line of mean scores for each hospital, and what they are of.

    Args:
        found: hospital -> ``cases`` and ``split``.

    >>> cases = {"Case00.nii.gz": {"hd95": 4.0, "val_mean_dice": 0.75}}
    >>> found = {"elm": {"cases": cases, "split": "all cases"}}
    >>> for line in evaluation_text(found).splitlines()[2:]:
    ...     print(" ".join(line.split()))
    elm 0.750 (1) 4.000 (1)
    elm: all cases.
    """
    scored = [scores for entry in found.values() for scores in entry["cases"].values()]
    # The Dice of all structures, val_mean_dice, comes first.
    names = sorted({name for scores in scored for name in scores}, reverse=True)
    rows = []
    for site, entry in found.items():
        row = [site]
        for name in names:
            values = [scores.get(name, math.nan) for scores in entry["cases"].values()]
            values = [value for value in values if not math.isnan(value)]
            row.append(f"{mean(values):.3f} ({len(values)})" if values else "–")
        rows.append(row)
    of_sites = [f"{site}: {entry['split']}." for site, entry in found.items()]
    titles = ["hospital", *[f"{name} (cases)" for name in names]]
    return "\n".join([text_of_table(titles, rows), *of_sites])
