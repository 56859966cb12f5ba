# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""What a wheel holds, what an import costs, and what every file of the project must or must not
say.
"""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import setuptools
from helpers import warm_python
from helpers.checkout import CHECKOUT, files_of_the_project
from helpers.command_line import PROSTATE
from readme_renderer import markdown

HEADER = (CHECKOUT / "monai_fairfl" / "errors.py").read_text().partition('"""')[0]
MACHINE_PATHS = [f"/{name}/" for name in ("work", "root", "tmp/venv", "home")]
REGISTRIES = [
    ".".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("anaconda", "org"))
]


def modules_after(code: str, tmp_path: Path) -> set[str]:
    """The names of all modules loaded after ``code`` ran in a fresh interpreter."""
    code += "\nimport sys; print('\\n'.join(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def copy_of_the_project(folder: Path) -> Path:
    """Copy the files of the project, without what was built in the checkout."""
    for file in files_of_the_project():
        copy = folder / file.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    return folder


def test_a_wheel_brings_bundles_types_and_the_command(tmp_path: Path) -> None:
    source = copy_of_the_project(tmp_path / "source")
    site = tmp_path / "site"
    build = [sys.executable, "setup.py", "--quiet", "bdist_wheel", "--dist-dir", str(tmp_path)]
    subprocess.run(build, cwd=source, check=True)
    (wheel,) = tmp_path.glob("monai_fairfl-*.whl")
    inside = zipfile.ZipFile(wheel).namelist()
    assert "monai_fairfl/py.typed" in inside
    for name in inside:
        assert not name.startswith(("tests/", "bundles/", "docs/")) and not name.endswith(".pt")
    for file in files_of_the_project():
        path = file.relative_to(CHECKOUT)
        if path.parts[0] == "bundles":
            assert f"monai_fairfl/_{path}" in inside
        if path.parts[0] == "monai_fairfl":
            assert str(path) in inside

    zipfile.ZipFile(wheel).extractall(site)
    [entries] = site.glob("*.dist-info/entry_points.txt")
    assert "monai-fairfl = monai_fairfl.cli:main" in entries.read_text()
    words = ["-m", "monai_fairfl", "bundle", "copy", "prostate_mri_segmentation", "--json"]
    done = warm_python.run([*words, "--out", "copy"], tmp_path, PYTHONPATH=str(site))
    assert json.loads(done.stdout) == {"bundle_root": "copy"}
    assert (tmp_path / "copy" / "configs" / "train.json").is_file()


def setup_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the ``setup.py`` of a folder hands to setuptools."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    runpy.run_path(str(folder / "setup.py"))
    return given


@pytest.mark.parametrize("home", [None, "https://example.org/fair/"])
def test_no_link_of_the_long_description_leads_nowhere(
    home: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("setup.py", "README.md", "CITATION.cff", "monai_fairfl/__init__.py"):
        copy = tmp_path / name
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(CHECKOUT / name, copy)
    if home is not None:
        with (tmp_path / "CITATION.cff").open("a") as file:
            file.write(f"repository-code: {home}\n")
    given = setup_of(tmp_path, monkeypatch)

    targets = re.findall(r"\]\(([^)]+)\)", given["long_description"])
    assert all(target.startswith(("https://", "#")) for target in targets)
    # An index shows what this library makes of it.
    page = markdown.render(given["long_description"])
    assert page is not None and "<table>" in page
    if home is None:
        assert given["project_urls"] == {} and "<img" not in page
        # The words of a link stay.
        assert "real prostate MRI" in page
    else:
        assert given["project_urls"]["Homepage"] == "https://example.org/fair"
        version = f"v{given['version']}"
        assert f"https://example.org/fair/raw/{version}/docs/images/readme.png" in page
        assert f"https://example.org/fair/blob/{version}/docs/results.md" in targets


def test_the_package_alone_loads_nothing_heavy(tmp_path: Path) -> None:
    assert not {"torch", "monai", "nvflare", "flwr"} & modules_after(
        "import monai_fairfl", tmp_path
    )


def test_no_module_outside_its_transport_loads_an_engine(tmp_path: Path) -> None:
    (tmp_path / "loads_all.py").write_text("""
import importlib, sys, monai_fairfl
from pathlib import Path
root = Path(monai_fairfl.__path__[0])
for file in sorted(root.rglob('*.py')):  # pkgutil would import the packages that are left out
    parts = file.relative_to(root).with_suffix('').parts
    name = '.'.join(['monai_fairfl', *parts]).removesuffix('.__init__')
    left_out = ('transports.flare', 'transports.flower', '__main__')
    if not name.startswith(tuple(f'monai_fairfl.{part}' for part in left_out)):
        importlib.import_module(name)
print(*sys.modules)
""")
    loaded = warm_python.run(["-m", "loads_all"], tmp_path).stdout.split()
    assert "monai_fairfl.transports.in_process" in loaded
    assert not {"nvflare", "flwr", "ray"} & {*loaded}


@pytest.mark.parametrize(
    ("package", "extra", "command"),
    [
        ("nvflare", "nvflare", ["doctor", "--flare-policy"]),
        ("flwr", "flower", ["export", PROSTATE, "--engine", "flower", "--out", "a"]),
    ],
)
def test_without_an_engine_its_commands_say_what_to_install(
    package: str, extra: str, command: list[str], tmp_path: Path
) -> None:
    (tmp_path / "without.py").write_text(f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == {package!r} else found(name, *rest)
from monai_fairfl.cli import main
sys.exit(main({[*command, "--json"]!r}))
""")
    done = warm_python.run(["-m", "without"], tmp_path)
    assert done.returncode == 2 and f"pip install 'monai-fairfl[{extra}]'" in done.stdout


def test_a_server_of_nvflare_does_not_load_monai(tmp_path: Path) -> None:
    loaded = modules_after("from monai_fairfl.transports.flare import FairFLController", tmp_path)
    assert "nvflare" in loaded and not {"monai", "ignite", "nibabel"} & loaded


def test_every_module_begins_with_the_licence() -> None:
    bare = [
        str(file)
        for file in files_of_the_project()
        if file.suffix == ".py" and not file.read_text().startswith(HEADER)
    ]
    assert not bare


def test_no_file_names_a_machine_or_a_registry() -> None:
    found = []
    for file in files_of_the_project():
        text = file.read_bytes().decode("utf-8", errors="ignore")
        found += [
            f"{file.relative_to(CHECKOUT)}: {word}"
            for word in (*MACHINE_PATHS, *REGISTRIES)
            if word in text
        ]
    assert not found


def test_the_guide_shows_the_example_that_is_tested() -> None:
    guide = (CHECKOUT / "CONTRIBUTING.md").read_text()
    code = (CHECKOUT / "docs" / "examples" / "inverse_loss.py").read_text().removeprefix(HEADER)
    assert f"```python\n{code}```" in guide
