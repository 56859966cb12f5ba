# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""Commands that use a model: ``infer``, ``adapt`` and ``export``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from monai.bundle import ConfigParser

from monai_fairfl.bundle.adaptation import adapt_model
from monai_fairfl.bundle.configuration import INFERENCE, read_keys
from monai_fairfl.cli.answers import LOG, Answer, emptied_unless_done, out_folder, say
from monai_fairfl.cli.engines import export_job
from monai_fairfl.cli.evaluating import find_model, model_file, site_of_run
from monai_fairfl.cli.running import output_into, run_line, written_overlay
from monai_fairfl.data.layouts import name_and_folder
from monai_fairfl.errors import ConfigError
from monai_fairfl.messages import to_json, value_of
from monai_fairfl.model_files.recipe import read_recipe
from monai_fairfl.utils.arguments import check_value
from monai_fairfl.utils.devices import best_device
from monai_fairfl.utils.plain_values import object_of_json
from monai_fairfl.workflow.cases import answer_text
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
