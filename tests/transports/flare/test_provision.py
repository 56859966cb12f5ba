# SPDX-FileCopyrightText: Copyright (c) MONAI FairFL contributors
# SPDX-License-Identifier: Apache-2.0
"""The page ``docs/flare_production.md``: what a hospital receives, writes and runs."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("nvflare")

import torch  # noqa: E402
import yaml  # noqa: E402
from cryptography import x509  # noqa: E402
from helpers.checkout import files_of_the_project  # noqa: E402
from helpers.page_tables import names_in_first_column  # noqa: E402
from nvflare.apis.fl_constant import FLContextKey, ReservedKey  # noqa: E402
from nvflare.apis.fl_context import FLContext  # noqa: E402
from nvflare.apis.workspace import Workspace  # noqa: E402
from nvflare.app_common.logging.constants import is_log_streaming_allowed  # noqa: E402
from nvflare.app_common.utils.fl_model_utils import FLModelUtils  # noqa: E402
from nvflare.fuel.sec.authz import Authorizer, AuthzContext, Person  # noqa: E402
from nvflare.private.fed.app.fl_conf import create_privacy_manager  # noqa: E402

from monai_fairfl import __version__  # noqa: E402
from monai_fairfl.bundle.shipped import find_bundle  # noqa: E402
from monai_fairfl.cli import main  # noqa: E402
from monai_fairfl.protocol.messages import Reply, Request  # noqa: E402
from monai_fairfl.transports.engines.site import Site  # noqa: E402
from monai_fairfl.transports.engines.site_settings import JobSiteSettings  # noqa: E402
from monai_fairfl.transports.flare.wire import reply_model, reply_of  # noqa: E402

pytestmark = pytest.mark.nvflare
CHECKOUT = Path(__file__).parents[3]
PAGE = (CHECKOUT / "docs" / "flare_production.md").read_text()
PROJECT = CHECKOUT / "docs" / "examples" / "flare" / "project.yml"
HOSPITALS = ("alder", "birch", "cedar")
SITE, AUTHORIZATION, PRIVACY = (
    json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
)


def commands() -> list[list[str]]:
    """The words of every command of the page, comments left out."""
    blocks = "".join(re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in blocks.splitlines() if line]


def command(*begin: str) -> list[str]:
    """The one command that begins so."""
    (found,) = [words for words in commands() if words[: len(begin)] == list(begin)]
    return found


SED = [words for words in commands() if words[0] == "sed"]


def provision(folder: Path) -> Path:
    """What the page's command writes."""
    shutil.copy(PROJECT, folder)
    environment = {**os.environ, "HOME": str(folder)}
    words = [sys.executable, "-m", "nvflare.cli", *command("nvflare", "provision")[1:], "--force"]
    subprocess.run(words, cwd=folder, env=environment, check=True, capture_output=True, timeout=120)
    return folder / "workspace" / "prostate_federation"


@pytest.fixture(scope="module")
def provisioned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return provision(tmp_path_factory.mktemp("provision"))


@pytest.fixture
def kits(provisioned: Path, tmp_path: Path) -> Path:
    """Kits that a test may change."""
    return Path(shutil.copytree(provisioned / "prod_00", tmp_path / "prod_00"))


# ---- the kits ----


def certificate(file: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(file.read_bytes())


@pytest.mark.slow
def test_each_participant_receives_what_the_page_says(provisioned: Path) -> None:
    kits = provisioned / "prod_00"
    assert {kit.name for kit in kits.iterdir()} == {
        "fl.example.org",
        *HOSPITALS,
        "lead@example.org",
    }
    named = names_in_first_column(PAGE, "| in the kit of `alder`")
    assert len(named) == 10
    for site in HOSPITALS:
        for name in named:
            assert (kits / site / name).exists(), (site, name)
    for name in ("fl.example.org/startup/server.key", "fl.example.org/startup/fed_server.json"):
        assert (kits / name).exists()
    for name in ("client.key", "fed_admin.json"):
        assert (kits / "lead@example.org" / "startup" / name).exists()
    keys = list(kits.rglob("*.key"))
    assert len(keys) == 5 and all(key.stat().st_mode & 0o77 == 0 for key in keys)
    assert len({key.read_text() for key in keys}) == 5
    assert not list(kits.rglob("signature.json"))


@pytest.mark.slow
def test_certificates_name_their_owner_and_are_signed_by_the_root(provisioned: Path) -> None:
    kits = provisioned / "prod_00"
    for site in HOSPITALS:
        own = certificate(kits / site / "startup" / "client.crt")
        assert own.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)[0].value == site
        root = certificate(kits / "fl.example.org" / "startup" / "rootCA.pem")
        own.verify_directly_issued_by(root)
        valid_for = own.not_valid_after_utc - own.not_valid_before_utc
        assert round(valid_for / timedelta(days=1)) == 360
    assert "root_pri_key" in json.loads((provisioned / "state" / "cert.json").read_text())


@pytest.mark.slow
def test_one_port_and_mutual_tls_for_everybody(provisioned: Path) -> None:
    kits = provisioned / "prod_00"
    server_file = kits / "fl.example.org" / "startup" / "fed_server.json"
    server = json.loads(server_file.read_text())["servers"][0]
    assert server["service"]["target"] == "fl.example.org:8002"
    assert server["admin_port"] == 8002
    assert server["connection_security"] == "mtls"
    for site in HOSPITALS:
        client = json.loads((kits / site / "startup" / "fed_client.json").read_text())
        service = {"target": "fl.example.org:8002", "scheme": "grpc"}
        assert client["servers"][0]["service"] == service
        assert client["client"]["connection_security"] == "mtls"
        assert client["client"]["fqsn"] == site
    lead_file = kits / "lead@example.org" / "startup" / "fed_admin.json"
    lead = json.loads(lead_file.read_text())["admin"]
    assert (lead["host"], lead["port"]) == ("fl.example.org", 8002)
    assert lead["connection_security"] == "mtls"


@pytest.mark.slow
def test_a_second_provision_keeps_all_certificates(tmp_path: Path) -> None:
    project = provision(tmp_path)
    assert provision(tmp_path) == project
    for first in (project / "prod_00").rglob("*.crt"):
        second = project / "prod_01" / first.relative_to(project / "prod_00")
        assert second.read_bytes() == first.read_bytes()


# ---- what the hospital writes ----


@pytest.mark.slow
def test_the_site_reads_the_pages_settings_where_the_page_puts_them(kits: Path) -> None:
    assert "`local/fairfl.json`" in PAGE
    (kits / "alder" / "local" / "fairfl.json").write_text(json.dumps(SITE))
    job = {"bundle": "prostate_mri_segmentation", "overrides": {"size": [64, 64]}}

    site = Site("alder", kits / "alder", job)

    assert site.settings == JobSiteSettings.merged(job, SITE)
    # Copied to a site without GPU, the example trains there, too.
    assert site.settings.device == ""
    assert site.settings.overrides == {"size": [64, 64], **SITE["overrides"]}
    assert str(site.dataset_dir) == SITE["dataset_dir"]
    train = find_bundle("prostate_mri_segmentation") / "configs" / "train.json"
    known = json.loads(train.read_text())
    assert set(SITE["overrides"]) <= set(known)


@pytest.mark.slow
def test_the_policy_command_adds_the_entry_to_nvflares_list(
    kits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("fl.example.org", *HOSPITALS):
        kit = kits / name
        assert main(["flare-policy", "--kit", str(kit), "--check"]) == 2
        assert main(["flare-policy", "--kit", str(kit)]) == 0
        own = kit / "local" / "resources.json"
        assert Workspace(str(kit)).get_resources_file_path() == str(own)
        default = json.loads((kit / "local" / "resources.json.default").read_text())
        default["class_allow_list"].append("monai_fairfl.")
        assert json.loads(own.read_text()) == default


@pytest.mark.slow
def test_the_servers_results_move_out_of_the_temporary_folder(kits: Path) -> None:
    local = kits / "fl.example.org" / "local"
    main(["flare-policy", "--kit", str(local.parent)])
    old, new = re.fullmatch(r"s#(.*)#(.*)#", SED[0][2]).groups()  # type: ignore[union-attr]
    text = (local / "resources.json").read_text()
    assert text.count(old) == 2
    assert f'"uri_root": "{new}/jobs-storage"' in text.replace(old, new)
    assert f"`{new}/jobs-storage/`" in PAGE


@pytest.mark.slow
def test_error_logs_stay_at_a_hospital_that_says_so(kits: Path) -> None:
    kit = kits / "alder"
    context = FLContext()
    main(["flare-policy", "--kit", str(kit)])
    context.set_prop(FLContextKey.WORKSPACE_ROOT, str(kit))
    context.set_prop(ReservedKey.IDENTITY_NAME, "alder")
    assert is_log_streaming_allowed(context)
    old, new = re.fullmatch(r"s/(.*)/(.*)/", SED[1][2]).groups()  # type: ignore[union-attr]
    file = kit / "local" / "resources.json"
    file.write_text(file.read_text().replace(old, new))
    assert not is_log_streaming_allowed(context)


def rights(policy: dict[str, Any]) -> Authorizer:
    authorizer = Authorizer(site_org="birch_hospital")
    assert authorizer.load_policy(policy) == ""
    return authorizer


@pytest.mark.slow
def test_custom_code_is_refused_by_the_pages_authorization_and_by_it_only(kits: Path) -> None:
    def may(authorizer: Authorizer, right: str, role: str = "project_admin") -> bool:
        lead = Person("lead@example.org", "consortium", role)
        return bool(authorizer.authorize(AuthzContext(right=right, user=lead, submitter=lead))[0])

    local = kits / "birch" / "local"
    default = rights(json.loads((local / "authorization.json.default").read_text()))
    own = rights(AUTHORIZATION)
    assert may(default, "byoc")
    for role in ("project_admin", "org_admin", "lead", "member"):
        assert not may(own, "byoc", role)
    for right in ("submit_job", "manage_job", "download_job", "view", "operate"):
        assert may(own, right)
    file = local / "authorization.json"
    file.write_text("{}")
    assert Workspace(str(local.parent)).get_authorization_file_path() == str(file)


@pytest.mark.slow
def test_the_pages_privacy_policy_changes_the_update_and_nothing_else(kits: Path) -> None:
    kit = kits / "cedar"
    (kit / "local" / "privacy.json").write_text(json.dumps(PRIVACY))
    manager = create_privacy_manager(Workspace(str(kit), "cedar"), names_only=False)
    (filter,) = manager.get_scope(None).task_result_filters["out"]
    steps = 4
    change = torch.linspace(-0.08, 0.08, 101).reshape(1, 101)
    buffers = {"mean": torch.tensor([3.0])}
    measured = {"global_score": {"mean": 0.5, "gland": 0.5}}
    sent = Reply(
        "cedar",
        {"w": change},
        40,
        measured,
        buffers,
        num_cases=7,
        num_steps=steps,
        id=1,
        run="r",
        round=0,
    )

    shareable = filter.process(FLModelUtils.to_shareable(reply_model(sent)), FLContext())
    request = Request("cedar", "train", {}, id=1, run="r", round=0)
    got = reply_of(FLModelUtils.from_shareable(shareable), request)

    assert got.error is None and got.update is not None
    found = got.update["w"].numpy().ravel()
    gamma = 0.01
    per_step = change.numpy().ravel() / steps
    cutoff = np.percentile(np.abs(per_step), 10)
    clipped = np.clip(per_step, -gamma, gamma) * steps
    clipped[np.abs(per_step) < cutoff] = 0
    np.testing.assert_allclose(found, clipped, atol=1e-7)
    assert 9 <= (found == 0).sum() <= 11
    assert np.abs(found).max() == pytest.approx(gamma * steps)
    assert got.measurements == measured
    assert (got.num_samples, got.num_cases, got.num_steps) == (40, 7, steps)
    assert got.buffers is not None and torch.equal(got.buffers["mean"], buffers["mean"])


# ---- the page's commands ----


def test_the_page_shows_the_project_file() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert shown == PROJECT.read_text()
    people = {each["name"]: each["type"] for each in yaml.safe_load(shown)["participants"]}
    assert [name for name, kind in people.items() if kind == "client"] == list(HOSPITALS)
    assert list(people.values()).count("server") == list(people.values()).count("admin") == 1


def test_our_commands_and_their_flags_exist() -> None:
    ours = [words for words in commands() if words[0] == "monai-fairfl"]
    assert {words[1] for words in ours} == {
        "flare-policy",
        "export-flare",
        "datalist",
        "doctor",
        "bundle",
        "verify",
    }
    for words in ours:
        with contextlib.redirect_stdout(io.StringIO()) as shown, pytest.raises(SystemExit) as end:
            main([words[1], "--help"])
        assert end.value.code == 0
        for word in words:
            assert not word.startswith("--") or word in shown.getvalue(), word


HELP = """
import contextlib, io, json, sys
from nvflare import cli
texts = {}
for words in json.loads(sys.argv[1]):
    sys.argv = ["nvflare", *words, "--help"]
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            cli.main()
        except SystemExit as end:
            texts[" ".join(words)] = shown.getvalue() if end.code == 0 else ""
print(json.dumps(texts))
"""


@pytest.mark.slow
def test_nvflares_commands_and_their_flags_exist(tmp_path: Path) -> None:
    theirs = [words for words in commands() if words[0] == "nvflare"]
    for text in re.findall(r"`(nvflare [^`]+)`", PAGE.replace("\n", " ")):
        theirs.append(shlex.split(text))
    asked: dict[tuple[str, ...], list[str]] = {}
    for words in theirs:
        is_one_word = words[1] in ("provision", "preflight-check", "package")
        asked[tuple(words[1:2] if is_one_word else words[1:3])] = words
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(sorted(asked))],
        env=environment,
        capture_output=True,
        text=True,
    )
    texts = json.loads(done.stdout.splitlines()[-1])
    assert len(texts) == len(asked) > 12
    for name, words in asked.items():
        text = texts[" ".join(name)]
        assert f"nvflare {' '.join(name)}" in text, name
        for word in words:
            assert not word.startswith("-") or re.search(rf"{word}\b", text), (words, word)


def test_all_commands_of_the_offline_folder_name_one_torch() -> None:
    pip = [words for words in commands() if words[0] == "pip" and "wheels" in words]
    named = [[word for word in words if word.startswith("torch==")] for words in pip]
    assert [words[1] for words in pip] == ["download", "wheel", "install", "install"]
    assert named[0] == named[1] == named[2] and len(named[0]) == 1


@pytest.mark.extended
@pytest.mark.long
@pytest.mark.slow
def test_a_folder_of_wheels_is_enough_for_a_hospital_without_internet(tmp_path: Path) -> None:
    for file in files_of_the_project():
        copy = tmp_path / "checkout" / file.relative_to(CHECKOUT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    # What it needs is here already, torch too.
    alone = ["--no-deps", "--no-index"]
    build = [word for word in command("pip", "wheel")[1:] if not word.startswith("torch==")]
    install = [words for words in commands() if "monai-fairfl[nvflare]" in words][0][1:]
    checkout = tmp_path / "checkout"
    subprocess.run([*pip, *build, *alone, "--no-build-isolation"], cwd=checkout, check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "fl"], cwd=tmp_path, check=True)
    python = tmp_path / "fl" / "bin" / "python"
    (packages,) = (tmp_path / "fl").glob("lib/python*/site-packages")
    into = [*pip, "--python", str(python), *install, "--no-deps"]
    # With the checkout on the path, pip would find the package there and install nothing.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(into, cwd=checkout, check=True, env=environment)
    others = [path for path in sys.path if path.endswith("-packages")]
    (packages / "rest.pth").write_text("\n".join(others))

    code = (
        "import monai_fairfl.transports.flare as flare, monai_fairfl.bundle.shipped as shipped;"
        "print(flare.__file__, *shipped.bundle_names())"
    )
    done = subprocess.run(
        [python, "-W", "ignore", "-c", code], cwd=tmp_path, env=environment, capture_output=True
    )
    assert done.returncode == 0, done.stderr.decode()
    file, *bundles = done.stdout.decode().split()
    assert Path(file).is_relative_to(packages), done.stderr.decode()
    assert bundles == ["fundus_disc_cup_segmentation", "prostate_mri_segmentation"]
    doctor = [python.parent / "monai-fairfl", "doctor"]
    shown = subprocess.run(doctor, env=environment, capture_output=True, text=True).stdout
    assert f"ok     monai-fairfl: {__version__}\n" in shown
    assert "ok     extra nvflare: nvflare 2.9" in shown
