# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command line: what each command prints, writes and refuses."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from helpers import public_layouts as made
from helpers.driving import SPEC, LeastSquares, vector
from monai.bundle import ConfigParser

from monai_fairfl import __version__
from monai_fairfl.cli import main
from monai_fairfl.report.collect import find_runs
from monai_fairfl.run_folder.ledger import Ledger
from monai_fairfl.server.federation import Federation
from monai_fairfl.strategies import FedAvg, FedISM, Standalone, Strategy
from monai_fairfl.strategies.catalogue import shipped
from monai_fairfl.transports.in_process import InProcess

CHECKOUT = Path(__file__).parents[2]
COMMANDS = ("try", "demo-data", "datalist", "bundle", "report", "verify", "strategies")


def run_json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict:
    assert main([*map(str, words), "--json"]) == code
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1  # one object, whole on one line, and nothing else
    return json.loads(printed.out)


def write_run(folder: Path) -> Path:
    folder.mkdir()
    ledger = Ledger(folder / "ledger.jsonl")
    for record in (
        {"kind": "start", "strategy": "FedAvg", "clients": ["Zürich"]},
        *(
            {
                "kind": "round",
                "round": n,
                "clients": [],
                "aggregation": {},
                "contributions": {},
                "measurements": {},
            }
            for n in range(2)
        ),
        {"kind": "end", "scores": {}},
    ):
        ledger.append(record)
    return folder


def run_process(
    *words: object, stdout: int = subprocess.PIPE, cwd: Path = CHECKOUT, **env: str
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "monai_fairfl", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT), **env},
        cwd=cwd,
        stdout=stdout,
        stderr=subprocess.PIPE,
    )


def test_help_names_every_command_without_loading_torch() -> None:
    code = (
        "import sys\n"
        "from monai_fairfl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'monai', 'numpy', 'rich'} & set(sys.modules)))\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    ).stdout
    assert shown.endswith("[]\n")
    assert all(re.search(rf"^ +{command}\b", shown, re.MULTILINE) for command in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example_that_it_understands(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    examples = re.findall(
        r"^  monai-fairfl (.*?)(?: +#.*)?$", capsys.readouterr().out, re.MULTILINE
    )
    from monai_fairfl.cli.program import _parser

    assert examples and all(_parser().parse_args(example.split()).command for example in examples)


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "monai_fairfl", "--version"],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"monai-fairfl {__version__}\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["strategies"], 0),
        (["bundle", "prostate_mri_segmentation", "/dev/null", "--json"], 2),
        (["--help"], 0),
        pytest.param(["try", "hospitals", "--out", "first"], 2, marks=pytest.mark.slow),
    ],
)
def test_a_reader_who_has_left_is_no_error(
    words: list[str], code: int, hospitals: Path, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    (tmp_path / "hospitals").symlink_to(hospitals)
    try:
        done = run_process(*words, stdout=writer, cwd=tmp_path)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (code, b"")
    assert not (tmp_path / "first").exists()  # no training began


@pytest.mark.slow
@pytest.mark.parametrize("command", ["strategies", "report"])
def test_characters_that_the_terminal_cannot_show_are_replaced(
    command: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "Zürich")
    done = run_process(
        command, *([] if command == "strategies" else [run]), PYTHONIOENCODING="ascii"
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"?" in done.stdout and done.stdout.isascii()


def test_demo_data_writes_six_hospitals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = run_json(capsys, "demo-data", "--out", tmp_path, "--size", 24, 24, 6)
    assert len(found["sites"]) == 6
    for site in found["sites"]:
        assert nib.load(tmp_path / site / "Case00.nii.gz").shape == (24, 24, 6)


def test_demo_data_writes_the_hospitals_of_the_demo_with_their_splits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = run_json(
        capsys, "demo-data", "--out", tmp_path, "--hospitals", "demo", "--size", 24, 24, 6
    )
    sites = run_json(capsys, "datalist", tmp_path)["sites"]
    assert sorted(sites) == written["sites"] == ["ash", "beech", "maple", "willow"]
    for name, site in sites.items():
        training = 2 if name == "willow" else 8
        assert (site["training"], site["validation"], site["testing"]) == (training, 2, 8)


def test_the_demo_has_no_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("demo-data", "--out", tmp_path / "x", "--kind", "fundus", "--hospitals", "demo")
    assert "leave out --kind fundus" in run_json(capsys, *words, code=2)["error"]
    assert not (tmp_path / "x").exists()


def test_sizes_of_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["demo-data", "--out", str(tmp_path), "--size", "48", "0", "8"])
    assert left.value.code == 2
    assert "'0' is not a whole number above 0" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["demo-data", "--out", "x"], ["datalist", "x"]])
def test_seeds_below_zero_are_refused(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([*command, "--seed", "-1"])
    assert left.value.code == 2
    assert "'-1' is not a whole number from 0" in capsys.readouterr().err


@pytest.mark.parametrize("size", [["--kind", "fundus", "--size", "1"], ["--size", "48", "4", "8"]])
def test_sizes_that_show_no_structure_are_refused(
    size: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "at least" in run_json(capsys, "demo-data", "--out", tmp_path / "x", *size, code=2)["error"]
    )
    assert not (tmp_path / "x").exists()


def test_datalist_of_a_root_checks_and_splits_every_site(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = run_json(capsys, "datalist", hospitals, "--out", tmp_path)["sites"]
    assert sorted(sites) == sorted(path.name for path in hospitals.iterdir() if path.is_dir())
    for name, site in sites.items():
        assert (site["training"], site["validation"], site["testing"]) == (2, 1, 1)
        written = json.loads((tmp_path / f"{name}.json").read_text())
        assert len(written["training"]) == 2


def test_datalist_folds_of_a_site_test_every_case_once(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tested = [
        run_json(capsys, "datalist", hospitals / "elm", "--folds", 4, "--fold", f) for f in range(4)
    ]
    assert [found["sites"]["elm"]["testing"] for found in tested] == [1, 1, 1, 1]


def test_datalist_names_the_problems_of_all_sites_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("A", "B"):
        (tmp_path / name).mkdir()
        nib.save(
            nib.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)),
            tmp_path / name / "Case00.nii.gz",
        )
    assert main(["datalist", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "'A'" in error and "'B'" in error and "Case00_segmentation.nii.gz" in error


def test_datalist_check_shows_all_sites_and_fails_only_where_a_training_would(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["datalist", str(hospitals), "--check"]) == 0
    shown = capsys.readouterr().out
    assert all(
        re.search(rf"^ {p.name} ", shown, re.MULTILINE) for p in hospitals.iterdir() if p.is_dir()
    )
    made.folders(tmp_path / "elm")
    made.folders(tmp_path / "oak", first=10)
    (tmp_path / "oak" / "masks" / "eye11.png").unlink()
    found = run_json(capsys, "datalist", tmp_path, "--check", "--structures", "disc", "cup", code=2)
    assert found["sites"]["elm"]["values"] == {"disc": [64, 255], "cup": [192, 255]}
    (problem,) = found["problems"]
    assert "site 'oak'" in problem and "images/eye11.png has no mask" in problem
    assert run_json(capsys, "datalist", tmp_path / "elm", "--check")["sites"]["elm"]["testing"] == 1


def test_what_photographs_are_can_be_given_and_folders_that_are_no_site_are_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site, first in (("elm", 0), ("oak", 4)):
        for n in range(first, first + 4):
            left, right = made.mask(n, (0, 128, 255), 96, 30, 14), np.zeros((96, 96), np.uint8)
            made.write(tmp_path / site / "images" / f"{n}.png", np.hstack([made.photo(n, 96)] * 2))
            made.write(tmp_path / site / "masks" / f"{n}.png", np.hstack([left, right]))
    (tmp_path / "ash").mkdir()
    (tmp_path / "ash" / "eye.nrrd").touch()
    words = ["datalist", tmp_path, "--structures", "disc", "cup"]
    for more in ([], ["--check"]):
        by_shape = run_json(capsys, *words, *more, "--stereo", "auto")["warnings"]
        given = run_json(capsys, *words, *more, "--stereo", "no")["warnings"]
        assert (len(by_shape), len(given)) == (3, 1), (by_shape, given)
        assert f"{tmp_path / 'ash'} holds images but is no site" in given[0]
        assert sum("taken for a stereo pair" in note for note in by_shape) == 2


def test_datalist_check_writes_nothing(hospitals: Path, tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as left:
        main(["datalist", str(hospitals), "--check", "--out", str(tmp_path / "lists")])
    assert left.value.code == 2 and not (tmp_path / "lists").exists()


def test_datalist_writes_the_values_of_structures_and_takes_lists_as_sites(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_json(
        capsys,
        "datalist",
        made.folders(tmp_path / "elm"),
        "--structures",
        "disc",
        "--out",
        tmp_path / "elm.json",
    )
    assert json.loads((tmp_path / "elm.json").read_text())["testing"][0]["values"] == {
        "disc": [64, 255]
    }
    made.nvflare(tmp_path / "flare")
    sites = run_json(capsys, "datalist", tmp_path / "flare", "--out", tmp_path / "lists")["sites"]
    assert {name: site["training"] for name, site in sites.items()} == {
        "client_I2CVB": 4,
        "client_MSD": 4,
    }
    assert sorted(path.name for path in (tmp_path / "lists").iterdir()) == [
        "client_I2CVB.json",
        "client_MSD.json",
    ]
    one = run_json(capsys, "datalist", tmp_path / "flare" / "datalist_2D" / "client_MSD.json")[
        "sites"
    ]
    assert one["client_MSD"]["testing"] == 2


def test_a_fold_without_the_number_of_folds_is_refused(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = run_json(capsys, "datalist", hospitals / "elm", "--fold", 1, code=2)["error"]
    assert error == "--fold 1 needs --folds, the number of folds"
    with pytest.raises(SystemExit):
        main(["datalist", str(hospitals / "elm"), "--folds", "0"])
    assert "'0' is not a whole number above 0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["demo-data", "--size", "24", "24", "6", "--out", "file/x"],
            "a part of this path is a file",
        ),
        (["bundle", "prostate_mri_segmentation", "file/x"], "a part of this path is a file"),
        (["datalist", "hospitals", "--out", "file"], "a file lies where a folder is needed"),
        (
            ["datalist", "hospitals/elm", "--out", "folder"],
            "this is a folder, where a file is needed",
        ),
        (["report", "run", "--out", "file"], "file"),
    ],
)
def test_a_place_that_cannot_be_written_is_named_first(
    words: list[str],
    says: str,
    hospitals: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hospitals").symlink_to(hospitals)
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    write_run(tmp_path / "run")
    error = run_json(capsys, *words, code=2)["error"]
    assert "Errno" not in error and says in error
    assert error.startswith(("file", "folder"))


def test_bundle_is_copied_once_and_never_over_something(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, root = "prostate_mri_segmentation", tmp_path / "mine"
    assert run_json(capsys, "bundle", name, root) == {"bundle_root": str(root)}
    original = CHECKOUT / "bundles" / name / "configs" / "train.json"
    copy = root / "configs" / "train.json"
    assert copy.read_bytes() == original.read_bytes()
    copy.write_text("{}")
    assert "name a new one" in run_json(capsys, "bundle", name, root, code=2)["error"]
    assert copy.read_text() == "{}"


def test_bundle_of_another_name_is_answered_with_those_there_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "prostrate", str(tmp_path / "x")]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and "prostate_mri_segmentation" in printed.err
    assert not (tmp_path / "x").exists()


def test_verify_reports_rounds_and_head_of_an_intact_chain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    found = run_json(capsys, "verify", run)["runs"][str(run)]
    assert (found["rounds"], found["finished"], found["head"]) == (
        2,
        True,
        Ledger(run / "ledger.jsonl").head,
    )


def test_verify_looks_at_every_strategy_of_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("FedAvg", "FedCE"):
        write_run(tmp_path / name)
    assert len(run_json(capsys, "verify", tmp_path)["runs"]) == 2


def test_verify_looks_at_a_run_and_at_those_in_its_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(tmp_path / "run")
    inner = write_run(tmp_path / "run" / "FedCE") / "ledger.jsonl"
    found = run_json(capsys, "verify", tmp_path / "run")["runs"]
    assert sorted(found) == [str(tmp_path / "run"), str(inner.parent)]
    assert find_runs([tmp_path / "run"]) == [tmp_path / "run"]  # its report is of it alone
    inner.write_text(inner.read_text().replace('"round":0', '"round":7'))
    assert (
        f"{inner}: line 3 does not" in run_json(capsys, "verify", tmp_path / "run", code=2)["error"]
    )


def test_verify_does_not_read_valuations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run")
    (run / "valuations").mkdir()
    (run / "valuations" / "x.json").write_text("{}")
    assert str(run) in run_json(capsys, "verify", run)["runs"]
    assert "x.json is damaged" in run_json(capsys, "report", run, code=2)["error"]


def test_verify_refuses_an_edited_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_run(tmp_path / "run") / "ledger.jsonl"
    file.write_text(file.read_text().replace('"round":0', '"round":7'))
    assert (
        "line 3 does not follow line 2" in run_json(capsys, "verify", file.parent, code=2)["error"]
    )


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_folder_without_a_run_is_an_error(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no run" in run_json(capsys, command, tmp_path, code=2)["error"]


@pytest.mark.parametrize("command", ["report", "verify"])
def test_a_folder_that_does_not_exist_is_not_called_empty(
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    error = run_json(capsys, command, "runs/fedce", code=2)["error"]
    assert error.startswith(f"runs/fedce does not exist (looked for {tmp_path}/runs/fedce)")
    write_run(tmp_path / "run")
    error = run_json(capsys, command, "run/ledger.jsonl", code=2)["error"]
    assert error.startswith("run/ledger.jsonl is a file: give the folder")


def test_report_has_a_sentence_for_every_client_and_names_its_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for strategy in (FedAvg(), Standalone()):
        transport = InProcess(
            {name: partial(LeastSquares, [target]) for name, target in (("A", 1.0), ("B", 2.0))}
        )
        Federation(
            strategy,
            transport,
            2,
            lambda: ({"w": vector([0.0])}, SPEC),
            run_dir=tmp_path / strategy.name,
        ).run()
    found = run_json(capsys, "report", tmp_path, "--out", tmp_path / "out")
    assert sorted(found["sentences"]) == ["A", "B"]
    assert Path(found["html"]).is_file() and Path(found["json"]).is_file()
    assert main(["report", str(tmp_path / "FedAvg")]) == 0
    assert f"Report: {tmp_path / 'FedAvg' / 'report.html'}" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_strategy_states_what_it_costs_and_appears_in_the_list(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    entry = run_json(capsys, "strategies")["strategies"][name]
    for key in ("paper", "client_does", "client_sends", "cost", "phases", "min_clients"):
        hint = f"give the class {name} a {key!r}, as monai_fairfl/strategies/fedce.py does"
        assert entry[key], hint
    hint = f"begin the docstring of {name} with one sentence, which ends with a period"
    assert entry["summary"].endswith("."), hint
    assert main(["strategies"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert [line for line in lines if line.split()[:1] == [name]]


WITH_VARIANTS = {
    name: kind
    for name, kind in shipped().items()
    if "variant" in inspect.signature(kind).parameters
}


def test_methods_with_several_readings_have_variants() -> None:
    assert {"AFL", "CFFL", "CGSV", "FedCE", "FedISM", "FedLWR", "ShapFed"} <= set(WITH_VARIANTS)


@pytest.mark.parametrize("kind", WITH_VARIANTS.values(), ids=WITH_VARIANTS)
def test_a_strategy_with_variants_has_the_letter_of_its_paper_and_refuses_an_unknown_one(
    kind: type[Strategy],
) -> None:
    paper = kind(variant="paper")  # type: ignore[call-arg]
    assert paper.variant == "paper"  # type: ignore[attr-defined]
    allowed = rf"{kind.__name__}: variant must be one of .*'paper'.*, got 'papr'"
    with pytest.raises(ValueError, match=allowed) as refused:
        kind(variant="papr")  # type: ignore[call-arg]
    choices = str(refused.value).partition("must be one of")[2].partition(", got")[0]
    assert choices.count("'") >= 4, f"{kind.__name__}: a variant with one value is no argument"


def test_the_list_shows_what_the_sites_must_measure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    found = run_json(capsys, "strategies")["strategies"]
    assert (found["FedCE"]["requires"], found["FedCE"]["min_clients"]) == (
        ["leave_one_out_error"],
        2,
    )
    assert (found["FedLWR"]["requires"], found["FedLWR"]["phases"]) == (
        ["cka"],
        2,
    )  # known to an instance only
    assert found["Ditto"]["personal"] and not found["FedAvg"]["personal"]
    main(["strategies"])
    shown = capsys.readouterr().out
    assert "leave_one_out_error" in shown and "2 phases: training" in shown  # nothing is cut off


def test_one_strategy_is_shown_with_formula_arguments_and_the_config_that_makes_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["strategies", "FedISM"]) == 0
    shown = capsys.readouterr().out
    assert (
        shown.startswith("FedISM(q=2.0, beta=0.5,")
        and "a_k = s_k^q" in shown
        and "q: power" in shown
    )
    assert ":math:" not in shown and ">>>" not in shown
    assert "estimates nobody's contribution" in shown
    (config,) = re.findall(r'"strategy": (\{.*\})', shown)
    assert isinstance(
        ConfigParser({"strategy": json.loads(config)}).get_parsed_content("strategy"), FedISM
    )
    entry = run_json(capsys, "strategies", "FedISM")["strategies"]["FedISM"]
    assert entry["config"] == json.loads(config) and entry["arguments"]["rho"] == 0.05


def test_an_unknown_strategy_is_answered_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "known are AFL, CFFL" in run_json(capsys, "strategies", "FedX", code=2)["error"]
    error = run_json(capsys, "strategies", "fedce", code=2)["error"]
    assert error.startswith("unknown strategy 'fedce': did you mean 'FedCE'?")


def test_a_strategy_of_ones_own_is_shown_by_its_dotted_path(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entry = run_json(capsys, "strategies", "inverse_loss.InverseLoss")["strategies"][
        "inverse_loss.InverseLoss"
    ]
    assert entry["config"] == {"_target_": "inverse_loss.InverseLoss"}
    assert entry["arguments"]["epsilon"] == 0.001 and entry["requires"] == ["train_loss"]
    assert main(["strategies", "inverse_loss.InverseLoss"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("InverseLoss(epsilon=0.001")
    assert "--strategy#_target_ inverse_loss.InverseLoss" in shown


def test_a_strategy_of_ones_own_is_shown_whatever_its_arguments_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shown_methods.py").write_text(
        "from inverse_loss import InverseLoss\n"
        "class Needy(InverseLoss):\n"
        "    def __init__(self, share, kind=dict, **more):\n"
        "        pass\n"
        "class Broken(InverseLoss):\n"
        "    def __init__(self):\n"
        "        raise KeyError('no table')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    entry = run_json(capsys, "strategies", "shown_methods.Needy")["strategies"][
        "shown_methods.Needy"
    ]
    assert (entry["needed_arguments"], entry["arguments"]) == (
        ["share"],
        {"kind": "<class 'dict'>"},
    )
    assert entry["description"] == ""  # not that of the class that it inherits from
    assert main(["strategies", "shown_methods.Needy"]) == 0
    assert capsys.readouterr().out.startswith("Needy(share, kind=")
    error = run_json(capsys, "strategies", "shown_methods.Broken", code=2)["error"]
    assert "cannot be made with its defaults: KeyError: 'no table'" in error
