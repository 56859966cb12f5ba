# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The entry of a startup kit's policy, and its command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")

from nvflare.app_common.default_component_policy import DEFAULT_CLASS_ALLOW_LIST  # noqa: E402

from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.errors import ConfigError  # noqa: E402
from monai_fairfl.transports.flare.policy import ENTRY, allow, allowed  # noqa: E402

pytestmark = pytest.mark.nvflare


def kit(folder: Path, **policy: Any) -> Path:
    (folder / "local").mkdir(parents=True)
    (folder / "local" / "resources.json.default").write_text(
        json.dumps({"format_version": 2, "other": 1, **policy})
    )
    return folder


def test_the_entry_is_added_to_the_sites_list_once_and_the_rest_stays(tmp_path: Path) -> None:
    site = kit(tmp_path, class_allow_list=["nvflare.a.B"])

    assert not allowed(site)
    allow(site)
    file = allow(site)

    assert allowed(site)
    expected = {"format_version": 2, "other": 1, "class_allow_list": ["nvflare.a.B", ENTRY]}
    assert json.loads(file.read_text()) == expected


@pytest.mark.parametrize(
    ("content", "says"),
    [("{", "is no JSON"), ("[]", "must be an object"), ('{"class_allow_list": "x"}', "is a list")],
)
def test_a_broken_policy_is_named_and_stays(tmp_path: Path, content: str, says: str) -> None:
    file = kit(tmp_path) / "local" / "resources.json"
    file.write_text(content)

    with pytest.raises(ConfigError, match=f"resources.json.*{says}"):
        allow(tmp_path)

    assert file.read_text() == content


def test_without_a_list_nvflares_own_stays(tmp_path: Path) -> None:
    file = allow(kit(tmp_path))

    assert json.loads(file.read_text())["class_allow_list"] == [*DEFAULT_CLASS_ALLOW_LIST, ENTRY]


def test_nvflare_takes_the_entry_for_this_packages_classes_and_no_others(tmp_path: Path) -> None:
    from nvflare.app_common.widgets.component_path_authorizer import ComponentPathAuthorizer

    listed = ComponentPathAuthorizer._normalize_allow_list([ENTRY])
    matches = ComponentPathAuthorizer._path_matches_prefix

    assert matches("monai_fairfl.transports.flare.server.controller.FairFLController", listed[0])
    assert not matches("monai_fairfl_evil.X", listed[0])


def test_the_command_shows_checks_and_adds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = str(kit(tmp_path / "alder"))

    assert main(["flare-policy", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"class_allow_list": ENTRY}
    assert main(["flare-policy", "--check"]) == 2 and "give --kit" in capsys.readouterr().err
    assert main(["flare-policy", "--kit", site, "--check"]) == 2
    assert main(["flare-policy", "--kit", site]) == 0
    assert main(["flare-policy", "--kit", site, "--check"]) == 0
    assert main(["flare-policy", "--kit", str(tmp_path / "none")]) == 2
    assert "is no startup kit" in capsys.readouterr().err


def test_the_policy_command_allows_classes_of_ones_own_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = kit(tmp_path, class_allow_list=["nvflare.a.B", ENTRY])
    words = ["flare-policy", "--kit", str(site), "--also", "inverse_loss.InverseLoss"]
    assert main([*words, "--check"]) == 2
    assert "--also inverse_loss.InverseLoss adds it" in capsys.readouterr().out
    assert main(words) == main([*words, "--check"]) == 0
    listed = json.loads((site / "local" / "resources.json").read_text())["class_allow_list"]
    assert listed == ["nvflare.a.B", ENTRY, "inverse_loss.InverseLoss"]


@pytest.mark.parametrize(
    ("marker", "also", "says"),
    [
        ("fed_admin.json", [], "of the server, of a site and of such a person"),
        ("fed_client.json", ["my.Strategy"], "only the server runs my.Strategy"),
    ],
)
@pytest.mark.parametrize("function", [allow, allowed])
def test_a_kit_of_another_kind_is_refused_and_stays(
    tmp_path: Path, marker: str, also: list[str], says: str, function: Any
) -> None:
    other = kit(tmp_path)
    (other / "startup").mkdir()
    (other / "startup" / marker).write_text("{}")

    with pytest.raises(ConfigError, match=says):
        function(other, also)

    assert not (other / "local" / "resources.json").exists()


def test_a_site_allows_the_package_and_the_server_ones_own_classes(tmp_path: Path) -> None:
    for name, also in (("fed_client.json", []), ("fed_server.json", ["my.Strategy"])):
        own = kit(tmp_path / name)
        (own / "startup").mkdir()
        (own / "startup" / name).write_text("{}")
        allow(own, also)
        assert allowed(own, also)
