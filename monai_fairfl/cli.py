# Copyright (c) MONAI FairFL contributors
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#     http://www.apache.org/licenses/LICENSE-2.0
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""The command ``monai-fairfl``: everything around a training. Training itself is ``python -m monai.bundle run``.

Each command is a function from its arguments to an :class:`Answer`; it imports what it needs, so ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from monai_fairfl import __version__
from monai_fairfl.errors import ConfigError, FairFLError

__all__ = ["main"]

EXAMPLES = """
a first look at your own hospitals, one folder each:
  monai-fairfl try hospitals

a first federation, from nothing:
  monai-fairfl demo-data --out hospitals
  monai-fairfl bundle prostate_mri_segmentation prostate
  python -m monai.bundle run --config_file prostate/configs/federate.json --bundle_root prostate \\
      --sites_root hospitals --run_dir runs/first --strategy#_target_ monai_fairfl.strategies.FedCE
  monai-fairfl report runs/first

With --json a command prints one JSON object and nothing else, {"error": "..."} when it fails. Exit code 2 is an error.
"""


class Answer(NamedTuple):
    """What a command found: plain JSON, and the same in words."""

    data: dict[str, Any]
    text: str
    code: int = 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after ``monai-fairfl``; those of this process by default.

    Returns:
        Exit code: 0, or 2 after an error that the user can mend, told in one line.

    >>> main(["bundle", "prostate_mri_segmentation", "/dev/null", "--json"])
    {"error": "/dev/null is there already and not an empty folder; name a new one, or delete it first"}
    2
    """
    args = _parser().parse_args(argv)
    try:
        answer = args.command(args)
    except (FairFLError, OSError) as error:
        line = " ".join(str(error).split("\n"))
        print(
            json.dumps({"error": line}) if args.json else f"monai-fairfl: {line}",
            file=None if args.json else sys.stderr,
        )
        return 2
    print(json.dumps(answer.data) if args.json else answer.text)
    return answer.code


def demo_data(args: argparse.Namespace) -> Answer:
    """Write six synthetic hospitals, of prostate MRI or of fundus photographs."""
    from monai_fairfl.data import write_clinics, write_sites

    size = args.size or ([96, 96, 16] if args.kind == "prostate" else [256])
    if len(size) != (3 if args.kind == "prostate" else 1):
        raise ConfigError(
            f"--size of {args.kind} is {'X Y Z' if args.kind == 'prostate' else 'one number'}, got {size}"
        )
    workers = os.cpu_count() or 1
    if args.kind == "prostate":
        sites = write_sites(args.out, seed=args.seed, size=(size[0], size[1], size[2]), workers=workers)
    else:
        sites = write_clinics(args.out, seed=args.seed, size=size[0], workers=workers)
    return Answer({"folder": args.out, "sites": sites}, f"{args.out}: {len(sites)} hospitals, {', '.join(sites)}")


def try_(args: argparse.Namespace) -> Answer:
    """Check a folder of hospitals, compare Standalone, FedAvg and FedCE on it at a small size, and report."""
    from monai_fairfl.trying import try_sites

    root = Path(args.folder).absolute()
    out = Path(args.out).absolute() if args.out else Path.cwd() / f"try-{root.name}"
    found = try_sites(root, out, args.rounds, sys.stderr if args.json else None)
    return Answer(found, f"To go on: change the command above, or the configuration in {found['bundle']}/configs")


def datalist(args: argparse.Namespace) -> Answer:
    """Check a site's files, or every site's, and split them by case."""
    from monai_fairfl.data import check_cases, site_datalist
    from monai_fairfl.data.layouts import sites_at
    from monai_fairfl.data.overview import overview
    from monai_fairfl.preflight import check_sites

    folders = sites_at(Path(args.folder).absolute())
    split = {"seed": args.seed} | ({"folds": args.folds, "fold": args.fold} if args.folds else {})
    if args.check:
        data, text = overview(folders, args.structures, **split)
        return Answer(data, text, 2 if data["problems"] else 0)
    one = Path(args.folder).absolute() in folders.values()
    names = {str(path): name for name, path in folders.items()}
    sites: dict[str, dict[str, Any]] = {}

    def check(site: str) -> None:
        sites[names[site]] = check_cases(site, args.structures)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_sites({name: str(path) for name, path in folders.items()}, check)
        for name, path in folders.items():
            file = None if args.out is None else Path(args.out) if one else Path(args.out) / f"{name}.json"
            parts = site_datalist(path, file, args.structures, sites[name].get("values"), **split)
            sites[name] |= {part: len(cases) for part, cases in parts.items()} | {"file": file and str(file)}
    notes = [str(warning.message) for warning in caught]
    lines = [
        "{site}: {num_cases} cases, {training} training, {validation} validation, {testing} testing; "
        "labels {labels}, {gland_slices} labelled slices".format(**site)
        for site in sites.values()
    ]
    written = [f"written: {args.out}"] if args.out else []
    return Answer({"sites": sites, "warnings": notes}, "\n".join(lines + [f"note: {note}" for note in notes] + written))


def bundle(args: argparse.Namespace) -> Answer:
    """Copy a shipped bundle."""
    from monai_fairfl.bundles import copy_bundle

    root = copy_bundle(args.name, args.folder)
    return Answer({"bundle_root": str(root)}, f"{root}: copied; {root / 'docs' / 'README.md'} says how to run it")


def report(args: argparse.Namespace) -> Answer:
    """Write the report of one run, or of several side by side."""
    from monai_fairfl.report import as_text, write_report

    out = Path(args.out or os.path.commonpath([Path(folder).absolute() for folder in args.run_dir]))
    found = write_report(args.run_dir, out)
    html, data = str(out / "report.html"), str(out / "report.json")
    return Answer({"html": html, "json": data, "sentences": found["sentences"]}, f"{as_text(found)}\nReport: {html}")


def verify(args: argparse.Namespace) -> Answer:
    """Check the chain of a run's ledger: that no record was edited, removed or added in between."""
    from monai_fairfl.report.collect import find_runs, read_run

    runs = {}
    for run in map(read_run, find_runs([args.run_dir])):
        runs[str(run.path)] = {"rounds": len(run.rounds), "finished": run.end is not None, "head": run.head}
    lines = [
        f"{path}: the chain holds, {run['rounds']} rounds, {'' if run['finished'] else 'not '}finished, "
        f"head {run['head']}"
        for path, run in runs.items()
    ]
    return Answer({"runs": runs}, "\n".join(lines))


def strategies(args: argparse.Namespace) -> Answer:
    """List the strategies that a federation can be run with, or show one in full."""
    from monai_fairfl import catalogue

    found = {name: catalogue.describe(name) for name in ([args.name] if args.name else catalogue.shipped())}
    text = catalogue.as_page(args.name, found[args.name]) if args.name else catalogue.as_table(found)
    return Answer({"strategies": found}, text)


def export_flare(args: argparse.Namespace) -> Answer:
    """Write a federation as a job folder for NVIDIA FLARE, with its seeded initial model."""
    from monai_fairfl.transports.flare.export import export_job
    from monai_fairfl.transports.flare.policy import ENTRY

    strategy = json.loads(args.strategy) if args.strategy.lstrip().startswith("{") else args.strategy
    words = ("bundle", "min_clients", "num_rounds", "name", "local_epochs", "seed", "timeout", "initial_ckpt")
    given = {word: getattr(args, word) for word in words if getattr(args, word) is not None}
    given |= {"config": args.config} if args.config else {}
    job = export_job(
        args.out, strategy=strategy, overrides=args.overrides, custom_code=not args.no_custom_code, **given
    )
    lines = [f"{job}: written; submit it with: nvflare job submit -j {job}"]
    if args.no_custom_code:
        lines.append(
            f"It brings no code, so the server and every site must have {ENTRY!r} in class_allow_list of "
            "local/resources.json: monai-fairfl flare-policy --kit KIT adds it"
        )
    return Answer({"job": str(job), "allow": ENTRY if args.no_custom_code else None}, "\n".join(lines))


def flare_policy(args: argparse.Namespace) -> Answer:
    """Tell, check or add what NVIDIA FLARE must allow for jobs that bring no code."""
    from monai_fairfl.transports.flare.policy import ENTRY, allow, allowed

    if args.kit is None:
        text = f'add "{ENTRY}" to class_allow_list in local/resources.json of the server and of every site'
        return Answer({"class_allow_list": ENTRY}, f"{text};\nmonai-fairfl flare-policy --kit KIT does it")
    if not args.check:
        file = allow(args.kit)
        return Answer({"file": str(file), "allowed": True}, f"{file}: {ENTRY!r} is allowed; restart what runs from it")
    if allowed(args.kit):
        return Answer({"allowed": True}, f"{args.kit}: {ENTRY!r} is allowed")
    text = f'{args.kit} does not allow "{ENTRY}": a job without custom code ends with "is not in allow_list".'
    return Answer({"allowed": False}, f"{text}\nmonai-fairfl flare-policy --kit {args.kit} adds it", 2)


def _plain_values(text: str) -> dict[str, Any]:
    try:
        found = ast.literal_eval(text)
    except (SyntaxError, ValueError):
        try:
            found = json.loads(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is not a mapping: {error}") from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a mapping such as {{'size': [64, 64]}}")
    return found


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="monai-fairfl",
        description="Fair federated medical image segmentation with MONAI bundles.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[[argparse.Namespace], Answer], example: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(
            name,
            help=inspect.getdoc(command),
            description=inspect.getdoc(command),
            epilog="examples:\n" + "\n".join(f"  monai-fairfl {line}" for line in example.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(command=command)
        return sub

    sub = add(
        "try",
        try_,
        "try hospitals                # volumes or photographs, in any layout of docs/data.md\n"
        "try hospitals --rounds 30 --out runs/try",
    )
    sub.add_argument("folder", metavar="DIR", help="one folder per hospital")
    sub.add_argument("--rounds", type=_positive, default=10, help="of each strategy (default: 10)")
    sub.add_argument(
        "--out", metavar="DIR", help="gets bundle/ and run/ (default: try-NAME here); goes on with what it holds"
    )

    sub = add(
        "demo-data",
        demo_data,
        "demo-data --out hospitals\n"
        "demo-data --out small --size 48 48 8 --seed 1\n"
        "demo-data --out clinics --kind fundus",
    )
    sub.add_argument("--out", required=True, metavar="DIR", help="folder for the hospitals; whole cases in it are kept")
    sub.add_argument(
        "--kind", choices=("prostate", "fundus"), default="prostate", help="of images (default: prostate, MRI)"
    )
    sub.add_argument("--seed", type=int, default=0, help="decides every image (default: 0)")
    sub.add_argument(
        "--size",
        type=_positive,
        nargs="+",
        metavar="N",
        help="voxels X Y Z (default: 96 96 16), or pixels of a photograph (default: 256)",
    )

    sub = add(
        "datalist",
        datalist,
        "datalist hospitals                            # check every site, show the split\n"
        "datalist hospitals --check                    # all sites in a table, with notes and problems\n"
        "datalist clinics --structures disc cup --out datalists\n"
        "datalist hospitals --out datalists            # and write datalists/SITE.json\n"
        "datalist hospitals/alder --folds 4 --fold 0 --out alder.json",
    )
    sub.add_argument(
        "folder", metavar="SITE_DIR|ROOT", help="a site's folder (or data list), or the folder of all sites"
    )
    sub.add_argument(
        "--structures",
        nargs="+",
        default=(),
        metavar="NAME",
        help="nested structures, the outermost first: the list then says which values of a mask are which",
    )
    sub.add_argument("--folds", type=int, metavar="K", help="cross-validation in K folds instead of 0.5/0.25/0.25")
    sub.add_argument("--fold", type=int, default=0, metavar="F", help="the fold that is tested, from 0 (default: 0)")
    sub.add_argument("--seed", type=int, default=0, metavar="S", help="of the shuffle (default: 0)")
    only = sub.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="read everything and tell in a table; write nothing")
    only.add_argument("--out", metavar="FILE", help="write the list there; for ROOT a folder that gets SITE.json")

    sub = add("bundle", bundle, "bundle prostate_mri_segmentation prostate")
    sub.add_argument("name", metavar="NAME", help="name of the bundle; a wrong one is answered with the list")
    sub.add_argument("folder", metavar="DIR", help="becomes the bundle's root; must be new or empty")

    sub = add("report", report, "report runs/first\nreport runs/fedavg runs/fedce --out comparison")
    sub.add_argument("run_dir", nargs="+", metavar="RUN_DIR", help="run_dir of a federation")
    sub.add_argument(
        "--out", metavar="DIR", help="for report.html and report.json (default: the run, or what holds all runs)"
    )

    sub = add("verify", verify, "verify runs/first")
    sub.add_argument("run_dir", metavar="RUN_DIR", help="run_dir of a federation")

    sub = add(
        "export-flare",
        export_flare,
        "export-flare --bundle prostate_mri_segmentation --strategy FedCE --min-clients 3 --num-rounds 40 --out job\n"
        "export-flare --bundle my_bundle --strategy CGSV --min-clients 3 --no-custom-code --out job",
    )
    sub.add_argument("--bundle", required=True, metavar="NAME|DIR", help="of this package, or a folder")
    sub.add_argument("--strategy", default="FedCE", metavar="NAME|JSON", help="name or configuration (default: FedCE)")
    sub.add_argument("--out", required=True, metavar="DIR", help="becomes the job folder")
    sub.add_argument("--min-clients", type=_positive, default=2, metavar="N", help="fewest sites (default: 2)")
    sub.add_argument("--num-rounds", type=_positive, default=60, metavar="N", help="in all (default: 60)")
    sub.add_argument("--local-epochs", type=_positive, default=1, metavar="N", help="of a round (default: 1)")
    sub.add_argument("--name", metavar="NAME", help="of the job and its run (default: BUNDLE-STRATEGY)")
    sub.add_argument("--config", nargs="+", metavar="FILE", help="of the bundle (default: configs/train.json)")
    sub.add_argument(
        "--overrides",
        type=_plain_values,
        metavar="MAPPING",
        help="plain values for the configuration, such as \"{'size': [64, 64]}\"",
    )
    sub.add_argument("--initial", dest="initial_ckpt", metavar="FILE", help="state_dict to begin from")
    sub.add_argument("--seed", type=int, default=0, help="of everything (default: 0)")
    sub.add_argument(
        "--timeout", type=float, default=0, metavar="SECONDS", help="of an exchange (default: 0, which waits for all)"
    )
    sub.add_argument(
        "--no-custom-code", action="store_true", help="for sites that run installed packages only; see flare-policy"
    )

    sub = add(
        "flare-policy",
        flare_policy,
        "flare-policy                 # the entry of class_allow_list\n"
        "flare-policy --kit alder     # add it to alder/local/resources.json\n"
        "flare-policy --kit alder --check",
    )
    sub.add_argument("--kit", metavar="DIR", help="startup kit of the server or of a site")
    sub.add_argument("--check", action="store_true", help="only tell; exit code 2 when it is missing")

    sub = add("strategies", strategies, "strategies\nstrategies FedCE")
    sub.add_argument("name", metavar="NAME", nargs="?", help="show this one in full, with its formula and arguments")
    return parser
