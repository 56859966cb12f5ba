# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What each command takes: a function whose docstring is its help, and which adds its options.

Each key of ``federate.json`` is an option of the same name, ``--local-epochs`` for
``local_epochs``. Nothing heavy is imported, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from monai_fairfl.bundle import settings
from monai_fairfl.utils.arguments import meanings
from monai_fairfl.utils.plain_values import written_value

OF_THE_COMMAND = ("bundle_root", "sites_root", "run_dir", "resume", "strategy", "strategies")
"""Keys that a command sets itself, by DATA, ``--bundle``, ``--out`` and ``--strategy``."""

KEYS = {name: row for name, row in settings.KEYS.items() if name not in OF_THE_COMMAND}
"""All other keys -> their rows."""

OPTIONS: dict[str, dict[str, Any]] = {
    "model": {"metavar": "MODEL", "help": "model file, or the folder of a run, for its global one"},
    "folder": {"metavar": "DATA", "help": "one folder per hospital"},
    "--bundle": {"metavar": "NAME|DIR", "help": "bundle to use (default: a shipped one that fits)"},
    "--device": {"help": "such as cuda:0 (default: a GPU if there is one)"},
    "--out": {"metavar": "DIR", "help": "for all that is written (default: a new folder here)"},
    "--quick": {"action": "store_true", "help": "a first look: minutes, no result to publish"},
    "--recipe": {"metavar": "NAME", "help": "another recipe of the bundle, such as light"},
    "--settings": {"metavar": "FILE", "type": Path, "help": "JSON with more keys (docs/keys.md)"},
    "--verbose": {"action": "store_true", "help": "show what else goes into log.txt"},
}
"""Name of an argument of several commands -> what it is."""


def add(command: argparse._ActionsContainer, *names: str, **flags: str) -> None:
    """Add arguments of :data:`OPTIONS`, and options without a value: name -> its help."""
    for name in names:
        command.add_argument(name, **OPTIONS[name])
    for name, what in flags.items():
        command.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)


def values_by_name(text: str) -> dict[str, Any]:
    """The values of an argument such as ``{'size': [128, 128]}``.

    Raises:
        ArgumentTypeError: it is none.
    """
    value = written_value(text)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise argparse.ArgumentTypeError(f"{text!r} is not like \"{{'size': [128, 128]}}\"")
    return value


def add_keys(command: argparse.ArgumentParser, *more: str) -> None:
    """Add an option for each key of ``federate.json``, and those that name files with keys.

    Args:
        command: gets them.
        more: keys that its help explains beside the usual ones; docs/keys.md has the others.

    >>> parser = argparse.ArgumentParser()
    >>> add_keys(parser)
    >>> keys_given(parser.parse_args(["--rounds", "3", "--seeds", "0", "1", "--share-cases"]))
    {'rounds': 3, 'seeds': [0, 1], 'share_cases': True}
    """
    add(command, "--settings")
    add(command.add_mutually_exclusive_group(), "--quick", "--recipe")
    keys = command.add_argument_group("keys of federate.json, each an option (docs/keys.md)")
    shown = ("rounds", "local_epochs", "overrides", "jobs", "devices", *more)
    texts = meanings(settings.Settings)
    for name, row in KEYS.items():
        kind = str(row.type)
        given: dict[str, Any] = {"type": written_value, "default": argparse.SUPPRESS}
        if kind.startswith("Mapping"):
            given["type"] = values_by_name
        elif kind == "bool":
            given |= {"nargs": "?", "const": True}
        elif "Sequence" in kind:
            given["nargs"] = "*"
        help_text = argparse.SUPPRESS
        if name in shown:
            # Without marks and links, which are of the page.
            plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", texts[name])
            help_text = plain.replace("`", "").replace("%", "%%")
        keys.add_argument(f"--{name.replace('_', '-')}", metavar="VALUE", help=help_text, **given)


def keys_given(args: argparse.Namespace) -> dict[str, Any]:
    """The keys that the options of a command give."""
    keys = {name: getattr(args, name) for name in KEYS if hasattr(args, name)}
    for name, value in keys.items():
        # A list may be written as one value.
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], (list, type(None))):
            keys[name] = value[0]
    return keys


# --- the commands


def demo(command: argparse.ArgumentParser) -> None:
    """Train a federation of four synthetic hospitals, and report; or only write their images.

    It takes one to three minutes on two cores. One hospital has few and unusual images: FedAvg
    fails it, and FedCE's sum does not.

    examples:
      monai-fairfl demo
      monai-fairfl demo --data-only --out hospitals --kind prostate
      monai-fairfl demo --data-only --out small --kind prostate --size 48 48 8 --seed 1
      monai-fairfl demo --data-only --out clinics --kind fundus
    """
    add(command, data_only="write the images into DIR, and train nothing")
    option = command.add_argument
    option("--kind", choices=("demo", "prostate", "fundus"), default="demo", help="of hospitals")
    option("--seed", type=int, default=0, help="of all that is random (default: 0)")
    option("--size", type=int, nargs="+", metavar="N", help="voxels X Y Z, or pixels N")
    add(command, "--out", "--verbose")


def doctor(command: argparse.ArgumentParser) -> None:
    """Check the environment, the machine and your data, and say how to fix each problem.

    Exit code 2: there is a problem. A note is not a problem: it names something optional that is
    missing, or something unusual in the data.

    examples:
      monai-fairfl doctor
      monai-fairfl doctor hospitals        # and the data of your sites
      monai-fairfl doctor hospitals/alder  # and the data of one hospital
      monai-fairfl doctor kit              # and local/fairfl.json of a hospital's startup kit
      monai-fairfl doctor /data/site       # and fairfl.json of a hospital's folder for Flower
      monai-fairfl doctor hospitals --write-lists datalists   # and write datalists/SITE.json
      monai-fairfl doctor --flare-policy              # the entry of class_allow_list
      monai-fairfl doctor alder --flare-policy --add  # add it to alder/local/resources.json
    """
    option = command.add_argument
    option("folder", metavar="DATA", nargs="?", help="of one hospital or of all, or a startup kit")
    add(command, verbose="also show what is fine")
    option("--write-lists", metavar="PATH", help="folder for SITE.json, or a file for one hospital")
    policy = command.add_argument_group("what NVIDIA FLARE must allow for jobs that bring no code")
    what = "show it, or check it in the startup kit DATA"
    add(policy, flare_policy=what, add="add it to the kit")
    policy.add_argument("--also", nargs="+", default=[], metavar="CLASS", help="your own classes")


def try_(command: argparse.ArgumentParser) -> None:
    """Compare Standalone, FedAvg and FedCE on your hospitals at a small size, and report.

    Every file is checked first.

    examples:
      monai-fairfl try hospitals        # volumes or photographs, in any layout of docs/data.md
      monai-fairfl try hospitals --rounds 30 --out runs/try --jobs 2
    """
    add(command, "folder", "--bundle", "--out", "--verbose")
    add_keys(command)
    command.set_defaults(strategy=["Standalone", "FedAvg", "FedCE"], quick=True, engine="local")


def train(command: argparse.ArgumentParser) -> None:
    """Train a federation of your hospitals as its bundle was measured, and report.

    Every file is checked first. If a training was stopped, run the same command to continue it.

    examples:
      monai-fairfl train hospitals              # as the bundle was measured
      monai-fairfl train hospitals --strategy "FedCE('sum')" --adapt-epochs 10
      monai-fairfl train hospitals --recipe light
      monai-fairfl train hospitals --quick      # a first look, in minutes
      monai-fairfl train hospitals --quick --engine flare --strategy FedCE --out flare
    """
    option = command.add_argument
    add(command, "folder")
    what = "such as \"FedCE('sum')\", or your own (default: FedAvg)"
    option("--strategy", nargs="+", default=[], help=what)
    option("--engine", choices=("local", "flare", "flower"), default="local", help="its simulator")
    add(command, "--bundle", "--out", "--verbose")
    add_keys(command, "seed", "record_updates", "adapt_epochs")


def compare(command: argparse.ArgumentParser) -> None:
    """Compare strategies over seeds and folds, with intervals and p-values for a paper.

    Every strategy is trained with every seed in every fold, on the same splits. A training that
    fails does not stop the others; run the same command to try it again, or to continue it.
    docs/comparing.md explains the tables, and what a p-value over cases does not show.

    examples:
      monai-fairfl compare hospitals --strategy Standalone FedAvg FedCE --quick
      monai-fairfl compare hospitals --strategy FedAvg "CGSV(gamma=None)" --seeds 0 1 2 --folds 4
    """
    command.add_argument("--strategy", nargs="+", required=True, help="two, such as FedAvg FedCE")
    add(command, "folder", "--bundle", "--out", "--verbose")
    add_keys(command, "seeds", "folds")


def value(command: argparse.ArgumentParser) -> None:
    """Answer what each hospital was worth to a run: leave-one-out and Shapley values.

    With recorded updates (demo, or train --record-updates) nothing is trained: every hospital
    scores the models of coalitions on its validation cases. Without them, the command says what
    training anew would take, and asks. The intervals are over the hospitals that score.
    docs/valuation.md has more kinds of values.

    examples:
      monai-fairfl value demo/run
      monai-fairfl value runs/fedce --retrain
    """
    command.add_argument("run_dir", metavar="RUN", help="folder of a run, or of several")
    add(
        command,
        "--verbose",
        retrain="train anew without each hospital, where no updates are recorded",
        others_judge="no hospital's own scores count for its own value",
    )


def infer(command: argparse.ArgumentParser) -> None:
    """Segment a folder of images, and say what was found and what to look at.

    The table of cases is also in volumes.csv or ratios.csv, next to the masks. Exit code 3: some
    cases could not be segmented, or lack an output. Exit code 2: no case could be segmented.

    examples:
      monai-fairfl infer runs/fedce scans       # its global model
      monai-fairfl infer runs/fedce/models/elm.pt scans --out masks --no-pictures
    """
    add(command, "model")
    command.add_argument("images", metavar="IMAGES", help="folder of volumes, DICOM or photographs")
    names = ("--bundle", "--device", "--out", "--verbose")
    add(command, *names, no_pictures="write no picture of each case's outline")


def evaluate(command: argparse.ArgumentParser) -> None:
    """Score a model on the test cases of hospitals, by Dice and surface distance.

    If the model is in its run's folder, the run's own test cases are scored. Otherwise all cases
    are scored, and the output says so.

    examples:
      monai-fairfl evaluate runs/fedce hospitals        # the test cases of the run's own splits
      monai-fairfl evaluate model.pt hospitals/elm --out scores
    """
    add(command, "model")
    command.add_argument("folder", metavar="DATA", help="labelled images of one hospital or of all")
    add(command, "--bundle", "--device", "--out", "--verbose")


def adapt(command: argparse.ArgumentParser) -> None:
    """Train a finished model further on one hospital's images, and take it only if it gains.

    Each epoch is scored on validation cases, and the best epoch counts. The adapted model is taken
    if its mean gain on these cases is larger than the gain's standard error, which needs at least
    two validation cases. Nothing leaves the hospital.

    examples:
      monai-fairfl adapt runs/fedce hospitals/elm       # a hospital of the run, or another one
      monai-fairfl adapt model.pt elm --epochs 20 --out elm-adapted
    """
    add(command, "model")
    option = command.add_argument
    option("folder", metavar="HOSPITAL", help="one hospital's images with labels")
    option("--epochs", type=int, default=10, help="at most (default: 10)")
    option("--rate", type=float, default=3e-4, help="learning rate (default: 0.0003)")
    option("--datalist", metavar="FILE", type=Path, help="(default: the run's, or a new one)")
    add(command, "--bundle", "--device", "--out", "--verbose")


def report(command: argparse.ArgumentParser) -> None:
    """Write the report of one run, of several side by side, or of a comparison again.

    examples:
      monai-fairfl report runs/first
      monai-fairfl report runs/fedavg runs/fedce --out comparison
    """
    option = command.add_argument
    option("run_dir", nargs="+", metavar="RUN", help="folder of a run, or a workspace with one")
    option("--out", metavar="DIR", help="new folder (default: that of all runs)")


def verify(command: argparse.ArgumentParser) -> None:
    """Check the chain of a run's ledger, its files, and what stored heads and its numbers show.

    An intact chain shows that no single record before the last one was damaged or changed. Every
    model, checkpoint and recorded update must have the digest that the ledger names. A head
    or a receipt that was stored elsewhere shows every change up to its own record, and none after
    it. A replay shows whether the recorded weights and contributions follow from the recorded
    replies. Of several runs, a broken one hides no other.

    With --what-if the answer has the weights and contributions that follow from the recorded
    updates and measurements. For the first round, this is what would have happened. From the
    second round on, other weights would have led to other models, and so to other updates, which
    nobody recorded. A question that needs more than the ledger contains is refused. A weight in the
    table is the mean over the rounds in which the site has one; a contribution is the site's last
    one. docs/ledger.md explains all of this.

    examples:
      monai-fairfl verify runs/first
      monai-fairfl verify runs/first --receipt runs/first/sites/*/state/receipts.jsonl
      monai-fairfl verify runs/first --replay
      monai-fairfl verify runs/fedce --what-if --without birch
      monai-fairfl verify runs/fedce --what-if --strategy "FedCE('sum')"
    """
    option = command.add_argument
    option("run_dir", metavar="RUN", help="folder of a run or of several, or a workspace with one")
    option("--head", metavar="SHA256", help="head of the ledger that you stored elsewhere")
    option("--receipt", nargs="+", default=[], metavar="FILE", help="receipts.jsonl of some sites")
    add(
        command,
        replay="compute the numbers again from the recorded replies, and compare",
        allow_import="import a strategy outside this package, and run its code",
    )
    asking = command.add_argument_group("another question to the ledger, without training")
    add(asking, what_if="compute the weights again without a site, or by another strategy")
    asking.add_argument("--without", metavar="SITE", help="leave this site out of every round")
    asking.add_argument("--strategy", help="in place of the run's own, such as \"FedCE('sum')\"")


def bundle(command: argparse.ArgumentParser) -> None:
    """List the shipped bundles, copy one, or prepare somebody else's MONAI bundle for a federation.

    A bundle to adopt must train with ignite, from configs/train.json or train.yaml. Its own files
    stay as they are. The command writes federate.json and overlays, prints the keys that it
    changed, and makes a trial run where it has data.

    examples:
      monai-fairfl bundle
      monai-fairfl bundle copy prostate_mri_segmentation --out prostate
      monai-fairfl bundle adopt spleen_ct_segmentation --data hospitals
      monai-fairfl bundle adopt spleen_ct_segmentation --data hospitals --out spleen_federated
    """
    option = command.add_argument
    option("action", nargs="?", choices=("list", "copy", "adopt"), default="list")
    option("name", metavar="BUNDLE", nargs="?", help="its name; to adopt, its folder")
    option("--out", metavar="DIR", type=Path, help="new folder (default: adopt changes BUNDLE)")
    option("--data", metavar="DATA", help="one folder per hospital, for a trial run of two of them")


def export(command: argparse.ArgumentParser) -> None:
    """Write a model as TorchScript, ONNX or a bundle, or a federation as a job for an engine.

    A model goes with the recipe of its training: the values that inference takes from it. Without
    --out the command shows this recipe. A job holds the seeded initial model.

    examples:
      monai-fairfl export runs/fedce                      # how its model was trained
      monai-fairfl export runs/fedce --out prostate.ts
      monai-fairfl export prostate_mri_segmentation --engine flare --strategy FedCE --out job
      monai-fairfl export my_bundle --engine flower --strategy CGSV --local-epochs 2 --out app
    """
    option = command.add_argument
    option("what", metavar="MODEL|BUNDLE", help="a model or a run; with --engine a bundle")
    option("--out", metavar="PATH", help="new .ts, .onnx or folder (default: show the recipe)")
    add(command, "--bundle")
    option("--engine", choices=("flare", "flower"), help="write a federation as a job")
    job = command.add_argument_group("with --engine")
    job.add_argument("--strategy", help="as of train (default: FedCE)")
    job.add_argument("--timeout", type=float, metavar="SECONDS", help="of each request")
    job.add_argument("--name", help="of the job and its run (default: BUNDLE-STRATEGY)")
    add(job, no_custom_code="for sites that run only what is installed")
    add_keys(command, "seed", "min_clients", "guards")


def strategies(command: argparse.ArgumentParser) -> None:
    """List the strategies that a federation can be run with, or show one in full.

    It can be one of your own. Every strategy also takes the parts of docs/methods/composition.md.

    examples:
      monai-fairfl strategies
      monai-fairfl strategies FedCE
      monai-fairfl strategies my_methods.MyStrategy
    """
    command.add_argument("name", metavar="NAME|PATH", nargs="?", help="one, a part, or your own")
