# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The command as a program: its help, its pipes, its terminal and the paths that it writes to."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.checkout import CHECKOUT
from helpers.command_line import run_json, run_process, write_run

from monai_fairfl.cli import main
from monai_fairfl.cli.build import build_of
from monai_fairfl.cli.program import _parser

COMMANDS = (
    "try",
    "compare",
    "demo-data",
    "datalist",
    "bundle",
    "report",
    "verify",
    "strategies",
)


def python(*words: str) -> str:
    """What a Python of its own prints."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    return done.stdout


def test_help_names_every_command_without_loading_torch() -> None:
    code = (
        "import sys\n"
        "from monai_fairfl.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: print(sorted({'torch', 'monai', 'numpy', 'rich'} & set(sys.modules)))\n"
    )
    shown = python("-c", code)
    assert shown.endswith("[]\n")
    for command in COMMANDS:
        assert re.search(rf"^ +{command}\b", shown, re.MULTILINE), command


def test_a_note_on_data_is_one_line_and_names_no_code(
    hospitals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for site in ("alder", "elm"):
        (tmp_path / site).symlink_to(hospitals / site)
    (tmp_path / "ash").mkdir()
    (tmp_path / "ash" / "eye.nrrd").touch()
    assert main(["train", str(tmp_path), "--bundle", "fundus_disc_cup_segmentation"]) == 2
    note, error = capsys.readouterr().err.splitlines()
    assert note.startswith(f"note: {tmp_path / 'ash'} holds images but is no site")
    assert error.startswith(f"monai-fairfl: {tmp_path} holds volumes")


@pytest.mark.parametrize(
    "words",
    [
        ["export-flare", "--out", "job"],
        ["simulate-flare", "--sites-root", "sites", "--workspace", "flare"],
        ["export-flower", "--out", "app"],
        ["simulate-flower", "--sites-root", "sites", "--workspace", "flower"],
    ],
)
def test_a_wrong_bundle_of_a_job_is_refused_without_loading_torch(words: list[str]) -> None:
    code = (
        "import contextlib, sys\n"
        "from monai_fairfl.cli import main\n"
        "with contextlib.redirect_stderr(sys.stdout): main(sys.argv[1:])\n"
        "print(sorted({'torch', 'monai', 'nvflare', 'flwr'} & set(sys.modules)))\n"
    )
    shown = python("-c", code, *words, "--bundle", "prostat")
    assert "bundle 'prostat' is neither a folder with configs/ here nor one of" in shown
    assert shown.endswith("[]\n")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_an_example_that_it_understands(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    examples = re.findall(r"^  monai-fairfl (.*?)(?: +#.*)?$", shown, re.MULTILINE)
    assert examples
    for example in examples:
        assert _parser().parse_args(example.split()).command


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["train", "DATA", "--num-rounds", "2"], "--num-rounds 2; did you mean --rounds?"),
        (["verify", "RUN", "--replai=1"], "--replai=1; did you mean --replay?"),
        (["verify", "RUN", "--replai"], "--replai; did you mean --replay?"),
        (["verify", "RUN", "--xyz"], "--xyz"),
        (["verify", "RUN", "another"], "another"),
    ],
)
def test_an_unknown_option_is_refused_with_the_one_that_was_probably_meant(
    words: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"monai-fairfl {words[0]}: error: unrecognized arguments: {hint}"


def test_the_module_is_the_command() -> None:
    assert python("-m", "monai_fairfl", "--version") == f"monai-fairfl {build_of()}\n"


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--help"], 0),
        (["bundle", "prostate_mri_segmentation", "/dev/null", "--json"], 2),
        # These import torch.
        pytest.param(["strategies"], 0, marks=pytest.mark.slow),
        pytest.param(["try", "hospitals", "--out", "first"], 2, marks=pytest.mark.slow),
    ],
)
def test_a_reader_that_closed_the_pipe_is_no_error(
    words: list[str], code: int, hospitals: Path, tmp_path: Path
) -> None:
    (tmp_path / "hospitals").symlink_to(hospitals)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run_process(*words, stdout=writer, folder=tmp_path)
    finally:
        os.close(writer)
    assert done.returncode == code
    assert done.stderr == b""
    # No training began.
    assert not (tmp_path / "first").exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is full")
def test_an_output_that_goes_to_a_full_disk_is_an_error_in_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = run_process("--help", stdout=full.fileno(), folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == b"monai-fairfl: standard output: No space left on device\n"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("command", ["strategies", "report"])
def test_characters_that_the_terminal_cannot_show_are_replaced(
    command: str, tmp_path: Path
) -> None:
    words: list[object] = [command]
    if command == "report":
        words.append(write_run(tmp_path / "Zürich"))
    done = run_process(*words, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert done.stderr == b""
    assert b"?" in done.stdout
    assert done.stdout.isascii()


@pytest.mark.parametrize(
    ("words", "problem"),
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
def test_a_path_that_cannot_be_written_is_named_first(
    words: list[str],
    problem: str,
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
    assert error.startswith(("file", "folder"))
    assert problem in error
    assert "Errno" not in error
