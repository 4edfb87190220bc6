"""`holdfast bundle`, `sign` and `verify-bundle`: an honest bundle holds, and whatever was done to one is said."""

import contextlib
import hashlib
import io
import json
import re
import shutil
import stat
import struct
import sys
import time
import warnings
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from sqlite3 import connect
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.fuzz.damage import damaged, damaged_json
from cli_workshop import Ask
from onnx import helper, numpy_helper
from rich.console import Console
from safetensors.numpy import save_file
from test_cli_check import change_record
from torch import nn

from holdfast.certificates.checking import CertificateCheck, check_certificates
from holdfast.certificates.claim import pack_proof
from holdfast.cli import main
from holdfast.cli.bundle import findings
from holdfast.cli.prove import certify_finished_run
from holdfast.commands.check import CheckSettings
from holdfast.commands.command import command_of
from holdfast.errors import HoldfastError
from holdfast.evidence import bundle_verification, manifest
from holdfast.evidence.archive import LARGEST_RATIO, pack, unpack
from holdfast.evidence.bundle import build_statement
from holdfast.evidence.checker_results import judge_certificates
from holdfast.evidence.finding import Finding
from holdfast.evidence.keys import PublicKey, read_public_key
from holdfast.evidence.model import signing_digest
from holdfast.evidence.signature import pae
from holdfast.evidence.statement import validate_with_in_toto
from holdfast.store import Store
from holdfast_check.container import read_container as read_container

pytest.importorskip(
    "cryptography", reason="the package cryptography is not installed: pip install 'holdfast[evidence]'"
)

ASKED = (
    "--model",
    "smooth.onnx",
    "--domain",
    "0,1",
    "--data",
    "points.npz",
    "--methods",
    "pgd,certify",
    "--executor",
    "here",
)
FILES = ("--model", "smooth.onnx", "--data", "points.npz")
Alter = Callable[[Path], None]


def said_by(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    return int(ending.value.code or 0)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its bundle, keys of two people, and the bundle as one of them signed it."""
    folder = tmp_path_factory.mktemp("bundles")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3)).eval()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter warns of its own doings
        for weights in model.parameters():
            weights *= 4  # so much curvature that proof and witness stay apart
        torch.onnx.export(
            model,
            (torch.rand(2, 3, 2),),
            folder / "smooth.onnx",
            dynamo=False,
            dynamic_axes={"input": {0: "batch"}},
            input_names=["input"],
        )
        x = torch.rand(2, 3, 2)
        np.savez(folder / "points.npz", x=x.numpy(), y=model(x).argmax(-1).numpy())
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert said_by("radius", *ASKED, "--out", folder / "run") == 0
        for name in ("maker", "other"):
            assert said_by("keygen", folder / f"{name}.pem") == 0
        assert said_by("bundle", folder / "run", "-o", folder / "plain.zip") == 0
        assert (
            said_by("sign", folder / "plain.zip", "--key", folder / "maker.pem", "-o", folder / "signed.zip")
            == 0
        )
    return folder


@pytest.fixture
def here(made: Path, workshop: Path) -> Path:
    """All of it in the workshop."""
    for path in made.iterdir():
        (shutil.copytree if path.is_dir() else shutil.copy)(path, workshop / path.name)
    return workshop


@pytest.fixture(scope="module")
def key(made: Path) -> PublicKey:
    return read_public_key(made / "maker.pub.pem")


def altered(bundle: Path, alter: Alter, *, listed: bool = False, stated: bool = False) -> Path:
    """The bundle with something else in it. listed: the manifest and its digest in the statement follow. stated: all of the statement
    does, and nobody has signed it."""
    target = bundle.with_name("altered.zip")
    with TemporaryDirectory() as place:
        folder = Path(place)
        unpack(bundle, folder)
        alter(folder)
        if listed or stated:
            manifest.write_manifest(folder)
            told = json.loads((folder / manifest.STATEMENT).read_bytes())
            told["subject"][0]["digest"]["sha256"] = hashlib.sha256(
                (folder / manifest.FILE).read_bytes()
            ).hexdigest()
            if stated:
                with Store.read(folder / "run") as store:
                    told = build_statement(folder, store, manifest.read_manifest(folder))
                (folder / manifest.SIGNATURE).unlink(missing_ok=True)
            (folder / manifest.STATEMENT).write_bytes(manifest.as_bytes(told))
        return pack(folder, target)


def replaced(name: str, old: str, new: str) -> Alter:
    def alter(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return alter


def without(name: str) -> Alter:
    return lambda folder: (folder / name).unlink()


def in_file(name: str, text: str) -> Alter:
    return lambda folder: (folder / name).write_text(text) and None


def test_an_honest_bundle_is_the_same_bytes_again_and_holds(here: Path, ask: Ask) -> None:
    shutil.copytree("run", "moved")
    assert ask("show", "moved").code == 0  # whoever reads a run leaves a log beside it
    assert ask("bundle", "moved", "--out", "again.zip").code == 0
    assert Path("again.zip").read_bytes() == Path("plain.zip").read_bytes()
    before = Path("signed.zip").read_bytes()
    said = ask(
        "verify-bundle",
        "signed.zip",
        "--public-key",
        "maker.pub.pem",
        *FILES,
        "--out",
        "findings.json",
        "--page",
        "mine.html",
    )
    assert said.code == 0, said.out
    for what in (
        "archive", "manifest", "statement", "signature", "seals", "contents", "page", "claims", "digests", "certificates", "model", "data",
        "witnesses", "proofs",
    ):  # fmt: skip
        assert f"{what}: ok" in said.out, said.out
    assert "2 claims: 0 accepted by the checker, 2 without certificate" in said.out
    assert json.loads(Path("findings.json").read_text())["answer"] == "all held"
    assert Path("signed.zip").read_bytes() == before
    assert (
        f"Signed by the key <code>{read_public_key(Path('maker.pub.pem')).fingerprint}</code>"
        in Path("mine.html").read_text()
    )


def test_what_was_not_checked_is_no_all_held(here: Path, ask: Ask) -> None:
    said = ask("verify-bundle", "signed.zip")
    assert said.code == 2
    for told in (
        "signature: unchecked, states that it is signed by",
        "witnesses: unchecked",
        "2 claims: 0 accepted by the checker, 2 without",
    ):
        assert told in said.out
    assert said.out.endswith("not all of it could be checked\n")


def signed_by(bundle: str, *keys: str) -> Finding:
    with TemporaryDirectory() as place:
        unpack(Path(bundle), Path(place))
        return bundle_verification.check_signatures(
            Path(place), [read_public_key(Path(name)) for name in keys]
        )


def test_signatures_are_put_beside_each_other_and_change_nothing_else(here: Path, ask: Ask) -> None:
    """Ed25519 signs the same the same; several stand for one bundle; a wrong key, or none where one is wanted, is said."""
    assert ask("sign", "plain.zip", "--key", "maker.pem", "-o", "again.zip").code == 0
    assert Path("again.zip").read_bytes() == Path("signed.zip").read_bytes()
    wrong = ask("verify-bundle", "signed.zip", "--public-key", "other.pub.pem")
    assert wrong.code == 1
    assert "and not by the key that you gave" in wrong.out
    unsigned = ask("verify-bundle", "plain.zip", "--public-key", "maker.pub.pem", "--page", "mine.html")
    assert unsigned.code == 1
    assert "signature: differs, unsigned" in unsigned.out
    assert not Path("mine.html").exists()
    assert ask("sign", "signed.zip", "--key", "other.pem", "-o", "both.zip").code == 0
    assert ask("sign", "both.zip", "--key", "other.pem").code == 0
    assert signed_by("both.zip", "maker.pub.pem", "other.pub.pem").state == "ok"
    assert signed_by("signed.zip", "maker.pub.pem", "other.pub.pem").state == "differs"
    with zipfile.ZipFile("both.zip") as archive, zipfile.ZipFile("plain.zip") as plain:
        assert len(json.loads(archive.read(manifest.SIGNATURE))["signatures"]) == 2
        assert {name: archive.read(name) for name in plain.namelist()} == {
            name: plain.read(name) for name in plain.namelist()
        }


ALTERED: dict[str, tuple[Alter, str]] = {  # as the mail left it: the manifest does not follow
    "a record": (
        lambda folder: change_record(folder / "run", lambda body, _: body["lower"].update(value=9.0)),
        "run/run.sqlite: was changed",
    ),
    "the page": (replaced("report.html", "<h2>", "<h2>No "), "report.html: was changed"),
    "a file less": (without("witnesses/0.npy"), "witnesses/0.npy: is missing"),
    "a file more": (in_file("more.json", "{}"), "more.json: is present, but not in the manifest"),
    "no run": (without("run/run.sqlite"), "run/run.sqlite is missing"),
    "no manifest": (without("manifest.json"), "manifest.json is missing"),
    "a manifest of something else": (
        in_file("manifest.json", '{"format": 2}'),
        "not the manifest of a bundle",
    ),
    "a manifest": (replaced("manifest.json", '"size": ', '"size": 1'), "was changed"),
    "the statement": (
        replaced("statement.json", '"proved": 2', '"proved": 9'),
        "signature: differs, the signature does not match",
    ),
    "no JSON": (in_file("statement.json", "{"), "statement: differs"),
    "the signature": (replaced("signature.dsse.json", '"sig": "', '"sig": "AAAA'), "signature: differs"),
    "an envelope of nothing": (
        in_file("signature.dsse.json", "[]"),
        "signature: differs, the signature does not match",
    ),
}


@pytest.mark.parametrize("name", ALTERED)
def test_what_was_changed_is_named(here: Path, ask: Ask, name: str) -> None:
    alter, told = ALTERED[name]
    said = ask("verify-bundle", altered(Path("signed.zip"), alter), "--public-key", "maker.pub.pem")
    assert said.code == 1
    assert told in said.out
    assert said.out.endswith("something differs\n")
    if name not in ("the signature", "an envelope of nothing", "the statement"):
        assert (
            ask("sign", "altered.zip", "--key", "maker.pem").code == 2
        )  # nobody stands for what is not whole


def forged(folder: Path) -> None:
    """By somebody who writes a new manifest and a new statement, and cannot sign."""
    for name, old, new in (
        ("report.html", "<h2>", "<h2>No "), ("records.json", '"kind": "proved"', '"kind": "witnessed"'),
        ("claims.json", '"method": "', '"method": "Better'), ("question.json", '"norm": "inf"', '"norm": "1"'),
        ("versions.json", '"began": "', '"began": "1'), ("model.json", '"source": "', '"source": "better '),
    ):  # fmt: skip
        replaced(name, old, new)(folder)
    np.save(folder / "witnesses/0.npy", np.zeros((3, 2), np.float32))
    in_file("more.json", "{}")(folder)
    check = {"name": "a", "passed": False, "wanted": "", "found": ""}
    (folder / "gate.json").write_text(
        json.dumps({"format": 1, "passed": True, "counts": None, "at": 0, "part": "", "checks": [check]})
    )


def test_what_does_not_follow_from_the_run_is_named(here: Path, ask: Ask) -> None:
    said = ask("verify-bundle", altered(Path("plain.zip"), forged, stated=True))
    assert said.code == 1
    names = ("records.json", "claims.json", "witnesses/0.npy", "question.json", "versions.json")
    wanted = [f"{name}: is not what the run records" for name in names]
    for told in (
        *wanted,
        "more.json: cannot be derived",
        "report.html: is not the page of this run",
        "gate: differs",
        "digests: differs",
    ):
        assert told in said.out


def test_a_record_without_its_seal_is_named(here: Path, ask: Ask) -> None:
    def raised(folder: Path) -> None:
        change_record(folder / "run", lambda body, _: body["lower"].update(value=9.0), sealed=False)

    said = ask("verify-bundle", altered(Path("plain.zip"), raised, listed=True))
    assert said.code == 1
    assert "seals: differs" in said.out


def test_a_statement_that_says_more_than_the_bundle_holds(here: Path, ask: Ask) -> None:
    said = ask(
        "verify-bundle", altered(Path("plain.zip"), replaced("statement.json", '"proved": 2', '"proved": 9'))
    )
    assert said.code == 1
    assert "claims: differs" in said.out


def test_a_forger_who_changes_all_of_it_meets_the_model(here: Path, ask: Ask) -> None:
    """A proved end that was raised, with new seals and a bundle that is whole."""
    change_record(Path("run"), lambda body, _: body["lower"].update(value=body["upper"]["value"]))
    assert ask("bundle", "run", "-o", "forged.zip").code == 0
    said = ask("verify-bundle", "forged.zip", *FILES)
    assert said.code == 1
    assert "proofs: differs" in said.out


def test_another_model_is_seen(here: Path, ask: Ask) -> None:
    shutil.copy("smooth.onnx", "theirs.onnx")
    shutil.copy("reader.onnx", "smooth.onnx")
    assert "not the model of this run" in ask("bundle", "run", "-o", "new.zip").err
    said = ask("verify-bundle", "plain.zip", *FILES, "--sample", "0")
    assert said.code == 1
    assert "digests: differs" in said.out
    assert ask("bundle", "run", "-o", "new.zip", "--model", "theirs.onnx", "--with-model").code == 0
    said = ask(
        "verify-bundle", "new.zip", "--data", "points.npz", "--sample", "0"
    )  # by the model in the bundle
    assert said.code == 2
    assert "witnesses: ok" in said.out
    assert "model: ok" in said.out


def test_the_gate_goes_with_the_run_that_it_judged(here: Path, ask: Ask) -> None:
    assert ask("gate", "run", "--at", "1e-9", "--min-certified", "0.5", "--json", "gate.json").code == 0
    assert ask("bundle", "run", "-o", "judged.zip", "--gate", "gate.json").code == 0
    assert "HOLDFAST_GATE_PASSED" in zipfile.ZipFile("judged.zip").read(manifest.STATEMENT).decode()
    assert "gate: ok" in ask("verify-bundle", "judged.zip").out
    Path("gate.json").write_text(Path("gate.json").read_text().replace('"certified": 2', '"certified": 9'))
    assert "about another run" in ask("bundle", "run", "-o", "new.zip", "--gate", "gate.json").err
    assert not Path("new.zip").exists()


def zipped(entries: list[tuple[zipfile.ZipInfo, bytes]]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for info, data in entries:
            archive.writestr(info, data)
    return content.getvalue()


def entry(name: str, mode: int = stat.S_IFREG | 0o644) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr, info.create_system, info.compress_type = mode << 16, 3, zipfile.ZIP_DEFLATED
    return info


def hostile() -> dict[str, bytes]:
    linked = entry("link", stat.S_IFLNK | 0o777)
    plain = (entry("a"), b"a")
    found = {
        "a way out": zipped([(entry("../x"), b"x")]),
        "the root": zipped([(entry("/etc/x"), b"x")]),
        "a drive": zipped([(entry("C:x"), b"x")]),
        "another bar": zipped([(entry("a\\..\\x"), b"x")]),
        "a hidden file": zipped([(entry(".x"), b"x")]),
        "a long name": zipped([(entry("x" * 300), b"x")]),
        "a link": zipped([(linked, b"/etc/passwd")]),
        "a folder": zipped([(entry("a/", stat.S_IFDIR | 0o755), b"")]),
        "nobody's rights": zipped([(entry("a", 0), b"x")]),
        "the wrong order": zipped([(entry("b"), b"b"), plain]),
        "a bomb": zipped([(entry("a"), bytes(LARGEST_RATIO * 2000))]),
        "another time": zipped([(zipfile.ZipInfo("a", (2020, 1, 1, 0, 0, 0)), b"a")]),
        "bytes before": b"#!/bin/sh\n" + zipped([plain]),
        "bytes after": zipped([plain]) + b"more",
        "nothing": b"",
        "no zip": b"PK\3\4" + bytes(100),
        "a page": b"<html>",
    }
    with pytest.warns(UserWarning, match="Duplicate"):
        found["twice"] = zipped([plain, (entry("a"), b"b")])
    found["twice on some systems"] = zipped([(entry("A"), b"a"), plain])
    lying = bytearray(zipped([(entry("a"), b"a" * 1000)]))
    at = lying.index(b"PK\1\2")
    lying[at + 24 : at + 28] = lying[22:26] = struct.pack("<I", 1100)  # it says that it holds more
    found["a lie about a size"] = bytes(lying)
    return found


@pytest.mark.parametrize(
    "name", ["a way out", "the root", "a link", "a bomb", "twice", "bytes after", "nothing"]
)
def test_a_hostile_zip_is_a_finding(workshop: Path, ask: Ask, name: str) -> None:
    Path("hostile.zip").write_bytes(hostile()[name])
    said = ask("verify-bundle", "hostile.zip")
    assert said.code == 1
    assert "archive: differs, hostile.zip: " in said.out


def test_nothing_of_a_hostile_zip_gets_out_of_its_folder(tmp_path: Path) -> None:
    for name, data in hostile().items():
        (tmp_path / "hostile.zip").write_bytes(data)
        folder = tmp_path / "deep" / "within"
        folder.mkdir(parents=True)
        with pytest.raises(HoldfastError, match=r"hostile\.zip"):
            unpack(tmp_path / "hostile.zip", folder)
        assert not [
            path for path in tmp_path.rglob("*") if path.is_file() and path.name not in ("hostile.zip", "a")
        ], name
        shutil.rmtree(tmp_path / "deep")


def states(bundle: Path, keys: list[PublicKey]) -> set[str]:
    with TemporaryDirectory() as place:
        return {one.state for one in findings(bundle, Path(place), keys, CheckSettings({}))}


def test_no_damaged_bundle_is_verified(made: Path, key: PublicKey, tmp_path: Path) -> None:
    """Bytes that chance changed: only findings come out, and one of them differs, unless the files are what they were."""
    honest, path, same = (made / "signed.zip").read_bytes(), tmp_path / "damaged.zip", 0
    with zipfile.ZipFile(made / "signed.zip") as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    for number in range(300):
        data = damaged(honest, Random(number), [(made / "plain.zip").read_bytes()])
        if data == honest:
            continue
        path.write_bytes(data)
        with TemporaryDirectory() as place:
            try:
                found = {name: (Path(place) / name).read_bytes() for name in unpack(path, Path(place))}
            except HoldfastError:
                continue
        same += found == files
        assert found == files or "differs" in states(path, [key]), number
    assert same < 10


def test_no_damaged_file_within_a_bundle_is_verified(made: Path, key: PublicKey, tmp_path: Path) -> None:
    """JSON that chance changed, with a manifest that follows; signed is the old one, so that a changed statement is seen too."""
    bundle = shutil.copy(made / "signed.zip", tmp_path / "signed.zip")
    names = (
        "manifest.json",
        "statement.json",
        "signature.dsse.json",
        "claims.json",
        "model.json",
        "versions.json",
        "question.json",
    )
    for number in range(80):
        chance = Random(number)
        name = chance.choice(names)

        def alter(folder: Path, name: str = name, chance: Random = chance) -> None:
            (folder / name).write_bytes(damaged_json((folder / name).read_bytes(), chance))

        with zipfile.ZipFile(bundle) as archive:
            before = archive.read(name)
        found = altered(bundle, alter, listed=False)
        with zipfile.ZipFile(found) as archive:
            if archive.read(name) != before:
                assert "differs" in states(found, [key]), (number, name)


def test_no_forged_json_breaks_the_reader(made: Path, tmp_path: Path) -> None:
    """The same where manifest and statement follow and nobody signed: all of it is looked at, and something differs."""
    bundle = shutil.copy(made / "plain.zip", tmp_path / "plain.zip")
    for number, name in enumerate(("claims.json", "model.json", "versions.json", "statement.json")):

        def alter(folder: Path, name: str = name, number: int = number) -> None:
            (folder / name).write_bytes(damaged_json((folder / name).read_bytes(), Random(number)))

        try:
            found = altered(bundle, alter, listed=True)
        except (ValueError, LookupError, TypeError):  # a statement that names nothing any more
            continue
        with zipfile.ZipFile(bundle) as before, zipfile.ZipFile(found) as after:
            with contextlib.suppress(ValueError):  # damage may leave text that is no JSON
                if json.loads(after.read(name)) == json.loads(before.read(name)):
                    continue
        made_with = name == "versions.json"  # which may say that another version made it: then nobody can say
        assert states(found, []) & ({"differs"} if not made_with else {"differs", "unchecked"}), (
            number,
            name,
        )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("sign", "plain.zip"), "say who signs"),
        (("sign", "plain.zip", "--key", "nothing.pem"), "no such file"),
        (("sign", "plain.zip", "--key", "maker.pub.pem"), "not a private key"),
        (("sign", "plain.zip", "--key", "data.npz"), "not a private key"),
        (("sign", "nothing.zip", "--key", "maker.pem"), "no such file"),
        (("sign", "data.npz", "--key", "maker.pem"), "data.npz"),
        (
            ("sign", "plain.zip", "--signer", "cli_own_code:linear", "--public-key", "maker.pub.pem"),
            "is not a signature",
        ),
        (("verify-bundle", "plain.zip", "--public-key", "maker.pem"), "not a public key"),
        (("keygen", "maker.pem"), "exists already"),
        (("bundle", "nothing", "-o", "new.zip"), "no run here"),
        (("bundle", "run", "-o", "new.zip", "--proofs", "nothing"), "not a folder of certificates"),
        (("bundle", "run", "-o", "new.zip", "--gate", "data.npz"), "data.npz"),
        (("bundle", "run", "-o", "new.zip", "--model", "nothing.onnx"), "no such file"),
        (("bundle", "run", "-o", "run.lease/new.zip"), "cannot be written"),
    ],
)
def test_what_is_missing_or_wrong_is_said(
    here: Path, ask: Ask, arguments: tuple[str, ...], told: str
) -> None:
    (here / "cli_own_code.py").write_text("def linear(told):\n    return b'rubbish'\n")
    shutil.copy("run/run.sqlite", "run.lease")
    said = ask(*arguments)
    assert said.code == 2
    assert told in said.err
    assert "Traceback" not in said.err
    assert not Path("new.zip").exists()


def test_keys_are_private_and_a_signer_of_ones_own_signs(here: Path, ask: Ask) -> None:
    """An ECDSA key that only the signer holds; keys of another kind, and encrypted ones."""
    assert stat.S_IMODE(Path("maker.pem").stat().st_mode) == 0o600
    (here / "cli_own_signer.py").write_text(
        "from pathlib import Path\n"
        "from cryptography.hazmat.primitives import hashes, serialization as form\n"
        "from cryptography.hazmat.primitives.asymmetric import ec, rsa\n"
        "key = ec.generate_private_key(ec.SECP256R1())\n"
        "told = form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo\n"
        "Path('curve.pub.pem').write_bytes(key.public_key().public_bytes(*told))\n"
        "secret = form.Encoding.PEM, form.PrivateFormat.PKCS8, form.BestAvailableEncryption(b'open')\n"
        "Path('locked.pem').write_bytes(form.load_pem_private_key(Path('maker.pem').read_bytes(), None).private_bytes(*secret))\n"
        "Path('rsa.pub.pem').write_bytes(rsa.generate_private_key(65537, 2048).public_key().public_bytes(*told))\n"
        "def sign(data):\n    return key.sign(data, ec.ECDSA(hashes.SHA256()))\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(here)
        __import__("cli_own_signer")
        assert (
            ask(
                "sign",
                "plain.zip",
                "--signer",
                "cli_own_signer:sign",
                "--public-key",
                "curve.pub.pem",
                "-o",
                "own.zip",
            ).code
            == 0
        )
        assert (
            "this kind of key is not supported"
            in ask("verify-bundle", "own.zip", "--public-key", "rsa.pub.pem").err
        )
        assert signed_by("own.zip", "curve.pub.pem").state == "ok"
        patch.setattr("getpass.getpass", lambda _: "shut")
        assert "the password is wrong" in ask("sign", "plain.zip", "--key", "locked.pem").err
        patch.setattr("getpass.getpass", lambda _: "open")
        assert ask("sign", "plain.zip", "--key", "locked.pem").code == 0
    assert Path("plain.zip").read_bytes() == Path("signed.zip").read_bytes()
    sys.modules.pop("cli_own_signer")


def test_without_the_package_for_keys_it_is_named(
    here: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "holdfast.evidence.keys")
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    for command in (
        ("keygen", "new.pem"),
        ("sign", "plain.zip", "--key", "maker.pem"),
        ("verify-bundle", "plain.zip", "--public-key", "k"),
    ):
        said = ask(*command)
        assert said.code == 2
        assert "pip install 'holdfast[evidence]'" in said.err
    assert ask("verify-bundle", "data.npz").code == 1  # which needs no key


def certificate(
    path: Path, question: str, centre: Sequence[float] = (0.0,), label: int = 0, radius: float = 0.0, low: float = 0.0, model: bytes = b"",
) -> None:  # fmt: skip
    """As 'holdfast prove' writes it, of this model or of one that nobody has."""
    path.parent.mkdir(exist_ok=True)
    digest = hashlib.sha256(model).hexdigest() if model else "0" * 64
    header = {
        "schema": "holdfast-proof",
        "version": 1,
        "kind": "proof",
        "model": {"sha256": digest},
        "question": question,
        "above": 0.0,
    }
    header |= {"region": {"norm": "inf", "radius": radius}, "property": {"class": label}}
    arrays = {"region/centre": centre, "region/lower": [low], "region/upper": [1.0], "region/shares": [1.0]}
    save_file(
        {name: np.array(values) for name, values in arrays.items()},
        path,
        {"holdfast-proof": json.dumps(header)},
    )


def test_certificates_go_with_the_run_and_none_counts_that_was_not_accepted(here: Path, ask: Ask) -> None:
    with Store.read("run") as store:
        first, _ = store.records()
    path = here / "run" / "proofs" / "0.proof"
    certificate(path, first.question)
    assert ask("bundle", "run", "-o", "new.zip").code == 0
    assert "certificates/0.proof" in zipfile.ZipFile("new.zip").namelist()
    said = ask("verify-bundle", "new.zip")
    assert said.code == 2
    assert "signature: unchecked, unsigned" in said.out
    assert (
        "2 claims: 0 accepted by the checker, 1 whose certificate was not checked, 1 without certificate"
        in said.out
    )
    certificate(path, "of another run")
    assert "a certificate of another run" in ask("bundle", "run", "-o", "other.zip").err
    path.write_bytes(b"\xff" * 100)
    assert "not a certificate" in ask("bundle", "run", "-o", "other.zip").err


def test_a_claim_counts_as_accepted_only_by_a_certificate_about_it(made: Path, tmp_path: Path) -> None:
    """Whatever the checker takes: another input, class or region, or a smaller radius, is not what the run claims."""
    unpack(made / "plain.zip", tmp_path)
    with Store.read(tmp_path / "run") as store:
        record, given = store.records()[0], store.inputs()[0]
    question, x, value = record.question, given.x.astype(np.float64).ravel(), record.bracket.lower.value
    assert given.label is not None

    def found(
        accepted: bool | None = True, *, beside: bool = False, again: bool = False, **said: Any
    ) -> Finding:
        certificate(
            tmp_path / "certificates/0.proof",
            question,
            **{"centre": x, "label": given.label, "radius": value} | said,
        )
        one = CertificateCheck("certificates/0.proof", question, "proof", accepted, "", beside)
        return judge_certificates(tmp_path, [one], again=again)

    assert found().told == "2 claims: 1 accepted by the checker, 1 without certificate"
    assert found(radius=0.995 * value, low=-1.0).told == found().told
    assert found().state == "unchecked"  # since one has none
    assert found(again=True).state == found(beside=True, again=True).state == "ok"
    for wrong in ({"accepted": False}, {"centre": x + 1e-9}, {"label": (given.label + 1) % 3}):
        assert found(**wrong).state == found(**wrong, again=True).state == "differs"
        assert "0 accepted" in found(**wrong).told
    for open_still in ({"radius": 0.9 * value}, {"low": 0.1}, {"accepted": None}):
        assert found(**open_still).state == found(**open_still, again=True).state == "unchecked"
        assert "0 accepted" in found(**open_still).told
    assert "0 accepted" in found(beside=True).told
    shown = CertificateCheck("certificates/0.witness", question, "witness", True, "")
    assert judge_certificates(tmp_path, [shown], again=False).told.endswith(
        "2 without certificate; 1 of 1 witness files accepted"
    )


def test_the_checker_is_asked_where_it_is_there(made: Path, tmp_path: Path) -> None:
    """Without the model, or without the checker, nobody has looked; what it cannot follow it does not accept."""
    certificate(tmp_path / "certificates/0.proof", "q")
    (tmp_path / "certificates/1.proof").write_bytes(bytes(20))
    lost, broken = check_certificates(tmp_path, {})
    assert lost.accepted is None
    assert broken.accepted is False
    [one, _] = check_certificates(tmp_path, {"0" * 64: made / "smooth.onnx"})
    assert not one.accepted  # no checker, or another model


def test_certificates_that_were_proved_are_accepted_for_the_claims_they_are_about(
    here: Path, ask: Ask
) -> None:
    """From `prove` to a bundle that carries its model, and back through the checker."""
    for part in ("holdfast_check", "holdfast.certificates.writing"):
        pytest.importorskip(part, reason=f"{part} is not there")
    assert ask("prove", "run", "-o", "run/proofs").code == 0
    assert ask("bundle", "run", "-o", "new.zip", "--with-model").code == 0
    assert (
        "certificates: ok, 2 claims: 2 accepted by the checker; 2 of 2 witness files accepted"
        in ask("verify-bundle", "new.zip").out
    )
    two: Alter = lambda folder: shutil.copy("reader.onnx", folder / "model" / "more.onnx") and None  # noqa: E731
    assert (
        "digests: differs, model holds 2 networks"
        in ask("verify-bundle", altered(Path("new.zip"), two, listed=True)).out
    )
    shutil.copy("run/proofs/0.proof", "run/proofs/1.proof")  # the first one's in the place of the second
    assert ask("bundle", "run", "-o", "swapped.zip", "--with-model").code == 0
    assert (
        "2 claims: 1 accepted by the checker, 1 without certificate"
        in ask("verify-bundle", "swapped.zip").out
    )


@pytest.mark.parametrize("runtime", [True, False], ids=["with onnxruntime", "without"])
def test_a_signed_forgery_by_an_operator_that_is_easily_misread_is_rejected(
    workshop: Path, ask: Ask, runtime: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model answers [2.7 as an integer, 5 x]: it changes at x = 0.4, and would at 0.54 if 2.7 stayed what it is."""
    if runtime:
        pytest.importorskip(
            "onnxruntime", reason="onnxruntime is not installed: pip install 'holdfast[runtime]'"
        )
    else:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
    steps = (
        ("Cast", "w", "i", {"to": 7}),
        ("Cast", "i", "f", {"to": 1}),
        ("Mul", "x a", "m", {}),
        ("Add", "m f", "y", {}),
    )
    graph = helper.make_graph(
        [helper.make_node(op, given.split(), [made], **about) for op, given, made, about in steps], "forged",
        [helper.make_tensor_value_info("x", 1, [1, 2])], [helper.make_tensor_value_info("y", 1, [1, 2])],
        [numpy_helper.from_array(np.array(value, np.float32), name) for name, value in {"w": [2.7, 0.0], "a": [0.0, 5.0]}.items()],
    )  # fmt: skip
    data = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    Path("forged.onnx").write_bytes(data)
    x = np.zeros((1, 2), np.float32)
    np.savez("zero.npz", x=x, y=np.zeros(1, np.int64))
    asked = (
        "--model",
        "forged.onnx",
        "--domain",
        "-1,1",
        "--data",
        "zero.npz",
        "--methods",
        "certify",
        "--executor",
        "here",
    )
    assert ask("radius", *asked, "--out", "forged").code == 0
    with Store.read("forged") as store:
        [record] = store.records()
    assert record.bracket.lower.value == pytest.approx(0.4, abs=1e-3)
    assert ask("keygen", "forger.pem").code == 0
    for radius, told in (
        (0.399, "certificates: ok, 1 claims: 1 accepted"),
        (0.53, "certificates: differs, 1 claims: 0 accepted"),
    ):
        change_record(Path("forged"), lambda body, _, radius=radius: body["lower"].update(value=radius))  # type: ignore[misc]
        certificate(
            Path("forged/proofs/0.proof"),
            record.question,
            x.ravel().astype(np.float64),
            0,
            radius,
            -1.0,
            data,
        )
        assert ask("bundle", "forged", "-o", "whole.zip", "--with-model").code == 0
        assert ask("sign", "whole.zip", "--key", "forger.pem", "-o", "signed.zip").code == 0
        said = ask("verify-bundle", "signed.zip", "--public-key", "forger.pub.pem")
        assert told in said.out, said.out
        assert "signature: ok" in said.out


def test_the_statement_is_read_by_the_package_of_in_toto(made: Path) -> None:
    pytest.importorskip(
        "in_toto_attestation",
        reason="the package in-toto-attestation is not installed: pip install 'holdfast[evidence]'",
    )
    told = json.loads(zipfile.ZipFile(made / "plain.zip").read(manifest.STATEMENT))
    assert validate_with_in_toto(told)
    for change in (
        {"_type": "other"},
        {"subject": []},
        {"predicateType": ""},
        {"predicate": {"attributes": []}},
        {"more": 1},
    ):
        with pytest.raises(HoldfastError, match="in-toto"):
            validate_with_in_toto({**told, **change})


def test_what_is_signed_is_what_the_envelope_says() -> None:
    """The example of the DSSE protocol."""
    assert (
        pae("http://example.com/HelloWorld", b"hello world")
        == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_the_subjects_are_the_model_by_the_digests_that_others_compute(made: Path) -> None:
    told = json.loads(zipfile.ZipFile(made / "plain.zip").read(manifest.STATEMENT))
    file = hashlib.sha256((made / "smooth.onnx").read_bytes())
    digests = [subject["digest"]["sha256"] for subject in told["subject"]]
    assert digests[1:] == [file.hexdigest(), hashlib.sha256(file.digest()).hexdigest()]


def test_the_digest_of_a_model_is_that_of_model_signing(tmp_path: Path) -> None:
    """Of one file, and of a folder whose names sort differently as text and as paths."""
    signing = pytest.importorskip(
        "model_signing", reason="the package model-signing is not installed: pip install model-signing"
    )
    names = ("a/b.bin", "a.bin", "a-b/c.bin", "model.onnx")
    digests = {}
    for name in names:
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    for path, ours in (
        (tmp_path / "model", digests),
        (tmp_path / "model" / "a.bin", {".": digests["a.bin"]}),
    ):
        theirs = signing.hashing.Config().hash(path)
        payload = __import__("model_signing._signing.signing", fromlist=["Payload"]).Payload(theirs)
        assert payload.statement.pb.subject[0].digest["sha256"] == signing_digest(ours)


def test_a_run_has_one_fingerprint_wherever_it_lies(here: Path, ask: Ask) -> None:
    """The page shows it, with the commands that check it."""
    assert ask("merge", "run", "-o", "copy").code == 0
    with Store.read("run") as run, Store.read("copy") as copy:
        fingerprint = run.fingerprint()
        assert copy.fingerprint() == fingerprint
    page = zipfile.ZipFile("plain.zip").read("report.html").decode()
    assert fingerprint in page
    assert page.count("holdfast verify-bundle ") == 2
    assert str(here) not in page.partition('id="repeat"')[0]
    assert ask("report", "run").code == 0
    assert fingerprint in Path("run/report.html").read_text()
    assert "holdfast check run --model" in Path("run/report.html").read_text()
    change_record(Path("run"), lambda body, _: body.update(note="another"))
    with Store.read("run") as run:
        assert run.fingerprint() != fingerprint


def test_a_run_that_was_killed_is_bundled_with_its_log(here: Path, ask: Ask) -> None:
    shutil.copytree("run", "killed")
    with closing(connect("killed/run.sqlite")) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("DELETE FROM history")
        connection.commit()
        shutil.copytree("killed", "copy")
    assert Path("copy/run.sqlite-wal").stat().st_size
    assert ask("bundle", "copy", "-o", "new.zip").code == 0
    Path("out").mkdir()
    unpack(Path("new.zip"), Path("out"))
    with Store.read("out/run") as store:
        assert store.count_events() == 0
        assert len(store.records()) == 2


def reproved(folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], name: str = "0") -> None:
    """A proof with something else in it, as a file that reads well."""
    path = folder / f"{name}.proof"
    metadata, arrays = read_container(path.read_bytes())
    header, arrays = json.loads(metadata["holdfast-proof"]), dict(arrays)
    change(header, arrays)
    path.write_bytes(pack_proof(header, arrays))


def another_network(folder: Path) -> None:
    """A weight of the network beside the certificates is another, and the certificate follows: it is true, of that network."""
    path = folder / "model.safetensors"
    metadata, weights = read_container(path.read_bytes())
    changed = dict(weights)
    name = next(name for name, value in weights.items() if value.dtype.kind == "f" and value.ndim == 2)
    changed[name] = weights[name] * np.float32(1 + 1e-6)
    path = folder / "model-other.safetensors"
    save_file(changed, path, metadata)

    def follow(header: dict[str, Any], _: dict[str, Any]) -> None:
        header["model"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        header["region"]["radius"] *= 0.999

    reproved(folder, follow)


def test_a_network_beside_its_certificates_is_that_of_the_run_or_another(workshop: Path, ask: Ask) -> None:
    """Made by code, so that the checker reads a description: without the model nobody knows whose it is; with it, it is written again."""
    given = ("--model", "cli_own_code:pooled", "--data", "images.npz")
    np.savez("images.npz", x=np.random.default_rng(0).random((2, 1, 6, 6), np.float32))
    asked = (*given, "--domain", "0,1", "--executor", "here", "--methods", "certify")
    measured = ask("radius", *asked, "-o", "run", "--certificates")
    assert measured.code == 0, measured
    assert "2 of 2 claims into run/proofs" in measured.out
    assert "holdfast-check run/proofs/model.safetensors run/proofs/*.proof\n" in measured.out
    assert ask("bundle", "run", "-o", "new.zip").code == 0
    alone = ask("verify-bundle", "new.zip").out
    assert (
        "2 claims: 0 accepted by the checker, 2 accepted by the checker, for a network stored with it"
        in alone
    )
    assert "give --model and --data to compare" in alone
    assert (
        "certificates: ok, 2 claims: 2 accepted by the checker\n"
        in ask("verify-bundle", "new.zip", *given, "--sample", "0").out
    )
    another_network(Path("run/proofs"))
    assert ask("bundle", "run", "-o", "other.zip").code == 0
    said = ask("verify-bundle", "other.zip", *given, "--sample", "0")
    assert "1 accepted by the checker, 1 whose certificate is about something else" in said.out
    assert "certificates/0.proof: it is about the network" in said.out
    assert said.code == 1


PROPERTY = "".join(
    [f"(declare-const X_{k} Real)\n(assert (>= X_{k} 0.4))\n(assert (<= X_{k} 0.6))\n" for k in range(6)]
    + [f"(declare-const Y_{k} Real)\n" for k in range(3)]
    + ["(assert (or (and (>= Y_0 99.0)) (and (<= Y_1 -99.0) (>= Y_2 99.0))))\n"]
)


def narrower(name: str, value: float) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    return lambda header, arrays: arrays.update({name: np.asarray(arrays[name], np.float64) * value})


REGIONS: dict[str, tuple[tuple[str, ...], dict[str, Callable[[dict[str, Any], dict[str, Any]], None]]]] = {
    "radius": (
        ("--norm", "2", "--frames", "0,2"),
        {"frames that move less": narrower("region/shares", 0.5)},
    ),
    "worst": (
        ("--norm", "inf", "--radius", "0.01", "--shares", "1,0.5"),
        {"a smaller radius": lambda header, _: header["region"].update(radius=0.005)},
    ),
    "verify": (
        (),
        {"a smaller box": narrower("region/upper", 0.9), "another property": narrower("property/rows", 0.5)},
    ),
}


@pytest.mark.parametrize("command", REGIONS)
def test_every_region_is_compared_with_the_question_that_the_model_and_the_data_make(
    here: Path, ask: Ask, command: str
) -> None:
    """Frames, shares, boxes and properties: the run tells too little of these, so they are made again. What is smaller is another."""
    Path("p.vnnlib").write_text(PROPERTY)
    shutil.rmtree("run")
    about, changes = REGIONS[command]
    given = ("--model", "smooth.onnx", "--data", "p.vnnlib" if command == "verify" else "points.npz")
    asked = (
        ("smooth.onnx", "p.vnnlib")
        if command == "verify"
        else (*given, "--limit", "1", "--domain", "0,1", "--methods", "certify", *about)
    )
    measured = ask(command, *asked, "-o", "run", "--executor", "here", "--certificates", "--seconds", "60")
    assert measured.code == 0, measured
    assert ask("bundle", "run", "-o", "new.zip", "--with-model").code == 0
    if command == "verify":  # the others alike
        alone = ask("verify-bundle", "new.zip").out
        assert " accepted by the checker, for a region or a property that is not compared" in alone
        assert "give --model and --data to compare" in alone
    said = ask("verify-bundle", "new.zip", *given, "--sample", "0").out
    assert re.search(r"certificates: ok, (\d) claims: \1 accepted by the checker", said), said
    name = sorted(path.stem for path in Path("run/proofs").glob("*.proof"))[0]
    honest = Path(f"run/proofs/{name}.proof").read_bytes()
    for what, change in changes.items():
        reproved(Path("run/proofs"), change, name)
        assert ask("bundle", "run", "-o", "other.zip", "--with-model").code == 0
        said = ask("verify-bundle", "other.zip", *given, "--sample", "0").out
        assert "certificates: differs" in said, what
        assert "1 whose certificate is about something else" in said, said
        Path(f"run/proofs/{name}.proof").write_bytes(honest)


def test_certificates_of_a_run_take_no_more_than_the_time_that_is_left(here: Path, ask: Ask) -> None:
    """A search that took all of it leaves none: that is said, and nothing is written. Without a folder there is no place for them."""
    with Store.open("run") as store:
        command = command_of("radius", {**store.question.options, "seconds": 30.0})
        built, told = command.build(), io.StringIO()
        certify_finished_run(command, built, store, time.monotonic() - 30, Console(file=told, width=300))
        assert (
            "no time was left: give more --seconds, or write them now with: holdfast prove run -o run/proofs"
            in told.getvalue()
        )
        assert not Path("run/proofs").exists()
        certify_finished_run(command, built, store, time.monotonic(), Console(file=told, width=300))
        assert "written: 4 of 4 claims into run/proofs" in told.getvalue()
    assert len(list(Path("run/proofs").iterdir())) == 4  # the user's own .onnx file is the model
    assert "--out" in ask("verify", "smooth.onnx", "p.vnnlib", "--certificates").err
