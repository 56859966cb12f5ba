# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command ``adapt``: a finished model is trained a little further at one hospital."""

from __future__ import annotations

import argparse
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from monai_fairfl.cli.command import (
    Answer,
    add_device,
    add_model,
    add_out,
    add_verbose,
    out_folder,
    positive,
    progress_stream,
    whole,
)

if TYPE_CHECKING:
    from monai_fairfl.bundle.adaptation import Adaptation
    from monai_fairfl.cli.named_models import SiteOfRun

EPOCHS = 10
RATE = 3e-4
LEAST_CASES = 2
"""So many validation cases the standard error of a gain needs."""

LOG = "log.txt"
NEW_SPLIT = "datalist.json"
NOT_TRAINED: dict[str, Any] = {"gain": None, "epochs": 0, "before": {}, "after": {}, "model": None}
"""The answer for ``--json`` where nothing was trained."""

TITLES = {"score": "validation Dice", "test_score": "test Dice"}
"""Closing measurement -> its column."""


def adapt_options(command: argparse.ArgumentParser) -> None:
    """Add the options of ``adapt``."""
    add_model(command)
    command.add_argument("folder", metavar="HOSPITAL", help="one hospital's images with labels")
    command.add_argument(
        "--epochs",
        type=positive,
        default=EPOCHS,
        metavar="N",
        help=f"train for at most this many epochs (default: {EPOCHS})",
    )
    command.add_argument(
        "--rate", type=_rate, default=RATE, help=f"learning rate (default: {RATE:g})"
    )
    command.add_argument(
        "--seed",
        type=whole,
        default=0,
        metavar="S",
        help="seed of the training's random numbers (default: 0)",
    )
    command.add_argument(
        "--config",
        nargs="+",
        metavar="FILE",
        help=(
            "training configuration, files relative to the bundle (default: those "
            "that trained the model)"
        ),
    )
    command.add_argument(
        "--datalist",
        metavar="FILE",
        help=(
            "data list of the hospital's training, validation and test cases (default: that of "
            "the run, or else a new split)"
        ),
    )
    add_device(command)
    add_out(command, "new folder for model.pt and the data list (default: adapt-HOSPITAL here)")
    add_verbose(command)


def _rate(text: str) -> float:
    """Parse a learning rate, for ``type=`` of an argument."""
    rate = math.nan
    with suppress(ValueError):
        rate = float(text)
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return rate


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
    from monai_fairfl.cli.named_models import bundle_of_model, model_file, site_of_run
    from monai_fairfl.cli.running import output_into
    from monai_fairfl.data.datalist import cases_of_list
    from monai_fairfl.data.sites import name_of_site
    from monai_fairfl.errors import ConfigError
    from monai_fairfl.utils.devices import best_device, require_device

    device = args.device or best_device()
    require_device(device)
    model = model_file(args.model)
    hospital = Path(args.folder).absolute()
    name = name_of_site(hospital)
    out = out_folder(args.out, f"adapt-{name}")
    # Where the files were at fault, the same command may be given again.
    if out.exists() and any(path.name != LOG for path in out.iterdir()):
        raise ConfigError(
            f"{out} is not empty: name another folder with --out, or delete this one if an adapt "
            "was stopped in it"
        )
    of_run = site_of_run(model, name)
    datalist, split = _cases(args.datalist, of_run, hospital, out)
    bundle = bundle_of_model(model, args.bundle)
    origin = f"Split into cases ({split}): {datalist}"
    # How many a new split has is known when the training begins.
    if datalist.is_file():
        listed = len(cases_of_list(datalist, hospital, ("validation",)))
        if listed < LEAST_CASES:
            text = f"{_too_few(listed, name)}\nNothing was trained.\n{origin}"
            return Answer(dict(NOT_TRAINED), text)
    if not datalist.is_file() and not takes_any_folder(bundle):
        _require_hospital(hospital)
    out.mkdir(parents=True, exist_ok=True)
    print(
        f"{name}: at most {args.epochs} epochs at a rate of {args.rate:g} ...",
        file=progress_stream(args),
        flush=True,
    )
    with _emptied_unless_done(out), output_into(out / LOG, args.verbose):
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
    return Answer(_plain(found), f"{adaptation_text(found, name)}\n{origin}")


@contextmanager
def _emptied_unless_done(out: Path) -> Iterator[None]:
    """After Ctrl-C or an error, delete what was written, so that the same command works again.

    Args:
        out: a folder that was empty but for the log, which stays.
    """
    try:
        yield
    except BaseException:
        shutil.rmtree(out / "site", ignore_errors=True)
        for name in (NEW_SPLIT, "model.pt", "model.recipe.json"):
            for file in (out / name, *out.glob(f".{name}.writing"), *out.glob(f"{name}.*.part")):
                file.unlink(missing_ok=True)
        raise


def _require_hospital(folder: Path) -> None:
    """Refuse what is no hospital's folder before anything is written.

    Raises:
        DataError: there are no images with masks in it, or it holds several hospitals.
    """
    from monai_fairfl.data.sites import find, sites_at
    from monai_fairfl.errors import DataError

    sites = sites_at(folder)
    if folder not in sites.values():
        raise DataError(
            f"{folder} holds {len(sites)} hospitals: name the folder of one, such as "
            f"{next(iter(sites.values()))}"
        )
    find(folder)


def _cases(
    named: str | None, of_run: SiteOfRun | None, hospital: Path, out: Path
) -> tuple[Path, str]:
    """The file of the hospital's split into cases, and where that split comes from.

    A file that does not exist yet gets a new split.

    Raises:
        ConfigError: there is no such data list as was named.
    """
    from monai_fairfl.errors import ConfigError

    if named is not None:
        datalist = Path(named).absolute()
        if not datalist.is_file():
            raise ConfigError(
                f"--datalist {named}: there is no such file. monai-fairfl doctor {hospital} "
                f"--write-lists {named} writes one"
            )
        return datalist, "the one you named"
    if of_run is not None:
        return of_run.datalist, f"that of the run{of_run.warning_of_other_data(hospital)}"
    return out / NEW_SPLIT, "new"


def adaptation_text(found: Adaptation, hospital: str) -> str:
    """What further training brought, in a table and sentences."""
    from monai_fairfl.messages import value_of
    from monai_fairfl.workflow.answer import in_columns

    names = [name for name in TITLES if name in found.before and name in found.after]
    rows = [["model", *[TITLES[name] for name in names]]]
    for model, scores in (("given", found.before), ("adapted", found.after)):
        rows.append([model, *[f"{value_of(scores[name]):.3f}" for name in names]])
    lines = [*in_columns(rows), *(_cases_of_score(found, name) for name in names)]
    return "\n".join([*lines, _verdict(found, hospital)])


def _cases_of_score(found: Adaptation, name: str) -> str:
    """Of how many cases a score is: an empty label has none."""
    from monai_fairfl.messages import Estimate
    from monai_fairfl.utils.words import count_words

    score = found.before[name]
    if isinstance(score, Mapping):
        score = score["mean"]
    count = score.n if isinstance(score, Estimate) else 0
    title = TITLES[name]
    return f"{title[0].upper()}{title[1:]} is of {count_words(count, 'case')} with a score."


def _verdict(found: Adaptation, hospital: str) -> str:
    """Whether the adapted model is taken, and why."""
    from monai_fairfl.utils.words import count_words

    gain = found.gain
    if gain.n < LEAST_CASES:
        return _too_few(gain.n, hospital)
    cases = count_words(gain.n, "validation case")
    if found.epochs == 0:
        return "Not taken: no epoch was better on the validation cases. Use the given model."
    # Two cases or more have a standard error.
    error = f"{gain.value:+.3f} ± {gain.stderr:.3f}"
    epochs = count_words(found.epochs, "epoch")
    measured = f"on {cases} it gains {error} Dice after {epochs}"
    if found.model is None:
        return f"Not taken: {measured}, no more than its standard error. Use the given model."
    honest = "the test Dice is the honest one"
    if "test_score" not in found.after:
        honest = "test cases would give the honest one"
    return (
        f"Taken: {measured}.\nThe epoch was chosen on these cases, so the gain is too high: "
        f"{honest}.\nModel: {found.model}"
    )


def _too_few(number: int, hospital: str) -> str:
    """Say that so many validation cases cannot judge a model, and what to do."""
    from monai_fairfl.utils.words import count_words

    cases = count_words(number, "validation case")
    return (
        f"Not taken: {hospital} has {cases} that can judge, and two are "
        "needed. Label more cases, or name a list with more of them: --datalist FILE"
    )


def _plain(found: Adaptation) -> dict[str, Any]:
    """The answer for ``--json``."""
    from monai_fairfl.messages import to_json

    scores = {"before": found.before, "after": found.after}
    plain: dict[str, Any] = to_json({"gain": found.gain, "epochs": found.epochs, **scores})
    plain["model"] = None
    if found.model is not None:
        plain["model"] = str(found.model)
    return plain
