"""`holdfast-check BUNDLE`: an honest bundle is accepted without holdfast, and nothing that was done to one is."""

import ast
import json
import os
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from test_cli_bundle import altered, said_by
from test_cli_verify import SQUARE, write_net

import holdfast_check
from holdfast.certificates.claim import pack_proof
from holdfast.result import Key
from holdfast.store import Store
from holdfast_check import check, check_bundle, time_limit
from holdfast_check.__main__ import main
from holdfast_check.container import read_container
from holdfast_check.proof import ROWS_VERSION, SCHEMA

pytest.importorskip(
    "cryptography", reason="the package cryptography is not installed: pip install 'holdfast[evidence]'"
)
SOURCES = Path(holdfast_check.__file__).parent
ROOT = SOURCES.parents[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of `verify` with its model, its certificate, its bundle, and a key that signed it."""
    folder = tmp_path_factory.mktemp("checked")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_net(folder / "small.onnx")
        (folder / "unsat.vnnlib").write_text("; X_0: speed [m/s]\n" + SQUARE + "(assert (>= Y_0 2.1))\n")
        assert said_by("verify", "small.onnx", "unsat.vnnlib", "--out", "run", "--certificates") == 0
        assert said_by("bundle", "run", "-o", "plain.zip", "--with-model") == 0
        for name in ("maker", "other"):
            assert said_by("keygen", f"{name}.pem") == 0
        assert said_by("sign", "plain.zip", "--key", "maker.pem", "-o", "signed.zip") == 0
    return folder


def test_an_honest_bundle_is_accepted_in_one_command(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    key = str(made / "maker.pub.pem")
    out = made / "findings.json"
    assert main([str(made / "signed.zip"), "--public-key", key, "--json", str(out)]) == 0
    told = capsys.readouterr().out
    for what in ("archive", "manifest", "statement", "signature", "certificates", "claims"):
        assert f"{what}: ok" in told, told
    assert "for all speed -1 to 1 m/s, X_1 -1 to 1: y_0 < 2.1; largest proved value" in told
    found = json.loads(out.read_text())
    assert found["exit_code"] == 0
    assert [one["state"] for one in found["findings"]] == ["ok"] * 6
    assert found["certificates"][0]["claim"]["sentence"] in told
    # Without a key, nobody is known to have made it; with another key it is not theirs.
    assert main([str(made / "signed.zip")]) == 3
    assert main([str(made / "plain.zip"), "--public-key", key]) == 1
    assert main([str(made / "signed.zip"), "--public-key", str(made / "other.pub.pem")]) == 1
    assert main([str(made / "signed.zip"), "--public-key", str(made / "small.onnx")]) == 2


def contents_of(file: Path) -> dict[str, bytes] | None:
    """The files of an archive; None if it cannot be read."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    except Exception:  # whatever the damage makes of it
        return None


def test_no_changed_byte_goes_unnoticed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, draw = (made / "signed.zip").read_bytes(), random.Random(5)
    key = str(made / "maker.pub.pem")
    for _ in range(25):
        changed = bytearray(data)
        at = draw.randrange(len(data))
        kind = draw.randrange(3)
        if kind == 0:
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1:
            changed.insert(at, draw.randrange(256))
        else:
            del changed[at]
        file = made / "changed.zip"
        file.write_bytes(changed)
        if contents_of(file) == contents_of(made / "signed.zip"):
            continue  # a bit behind the end of compressed data, which no reader sees
        code = main([str(file), "--public-key", key] if changed[:4] == b"PK\3\4" else [str(file), "x.proof"])
        assert code in (1, 2), at
    capsys.readouterr()


def _in_certificate(change: Callable[[dict, dict], None]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def alter(folder: Path) -> None:
        [file] = (folder / "certificates").glob("*.proof")
        metadata, arrays = read_container(file.read_bytes())
        header, own = json.loads(metadata[SCHEMA]), dict(arrays)
        change(header, own)
        file.write_bytes(pack_proof(header, own))

    return alter


def _in_claims(change: Callable[[dict], None]) -> Callable[[Path], None]:  # type: ignore[type-arg]
    def alter(folder: Path) -> None:
        told = json.loads((folder / "claims.json").read_text())
        change(told["records"][0])
        (folder / "claims.json").write_text(json.dumps(told))

    return alter


FORGERIES: dict[str, Callable[[Path], None]] = {
    "a wider region": _in_certificate(lambda h, a: a.update({"region/upper": np.array([3.0])})),
    "a stronger property": _in_certificate(lambda h, a: a.update({"property/offset": np.array([1.0])})),
    "another model": _in_certificate(lambda h, a: h["model"].update(sha256="0" * 64)),
    "a wider region in words": _in_claims(lambda r: r["claim"]["inputs"]["ranges"][0].update(upper=2.0)),
    "another property in words": _in_claims(lambda r: r["claim"]["property"].update(offset=[1.0])),
    "other names in words": _in_claims(lambda r: r["claim"]["inputs"]["ranges"][0].update(name="gap")),
    "a claim without certificate": _in_claims(lambda r: r.update(question="0" * 64)),
    "no certificate": lambda folder: [file.unlink() for file in (folder / "certificates").iterdir()] and None,
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_bundle_is_not_accepted_even_if_its_hashes_follow(
    name: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Manifest and statement name the forged files, as anybody can do; only the signature is missing."""
    forged = altered(made / "plain.zip", FORGERIES[name], listed=True)
    code = main([str(forged)])
    told = capsys.readouterr().out
    assert "manifest: ok" in told
    assert code == (3 if name in ("another model", "a claim without certificate", "no certificate") else 1), (
        told
    )
    assert "1 of 1 proved claims have an accepted certificate" not in told
    assert main([str(forged), "--public-key", str(made / "maker.pub.pem")]) == 1


def test_the_checker_looks_at_the_clock(made: Path) -> None:
    """The clock advances by a second with each look, so no outcome depends on the machine."""
    [proof] = (made / "run" / "proofs").glob("*.proof")
    now = iter(range(10**6))
    with time_limit(3.0, clock=lambda: float(next(now))):
        verdict = check(made / "small.onnx", proof)
    assert not verdict.accepted
    assert not verdict.finished
    assert "not checked: 3 s have passed" in verdict.reason
    assert check(made / "small.onnx", proof).accepted
    with time_limit(3.0, clock=lambda: float(next(now))):
        states = [one.state for one in check_bundle(made / "signed.zip") if not isinstance(one, tuple)]
    assert states[-1] == "unchecked"


@pytest.mark.parametrize("file", sorted(path.name for path in SOURCES.glob("*.py")))
def test_every_file_of_the_checker_is_python_3_9(file: str) -> None:
    """Syntax by the parser; what the parser does not know (zip with strict, unions as values) by name."""
    tree = ast.parse((SOURCES / file).read_text(), feature_version=(3, 9))
    assert "from __future__ import annotations" in (SOURCES / file).read_text()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "zip":
            assert not any(keyword.arg == "strict" for keyword in node.keywords), node.lineno
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else [one.name for one in node.names]
            )
            known = {*sys.stdlib_module_names, "numpy", "holdfast_check", "onnxruntime"}
            assert all(name.split(".")[0] in known for name in names), names
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            capital = all(
                isinstance(t, ast.Name) and t.id[:1].isupper() and not t.id.isupper() for t in node.targets
            )
            assert not (capital and isinstance(node.value.op, ast.BitOr)), (
                f"a union as a value: {node.lineno}"
            )


def test_the_wheel_alone_checks_a_bundle_with_numpy_and_nothing_else(made: Path, tmp_path: Path) -> None:
    """The wheel is built without an index, unpacked, and run by an interpreter that sees it and numpy alone."""
    pytest.importorskip("hatchling", reason="hatchling, which builds the wheel, is not installed")
    place = tmp_path / "site"
    built = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation",
         "--disable-pip-version-check", "--wheel-dir", str(tmp_path), str(ROOT / "checker")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("holdfast_check-*-py3-none-any.whl")
    assert wheel.stat().st_size < 300_000
    assert wheel.name.split("-")[1] == holdfast_check.__version__
    assert holdfast_check.__version__.split(".")[0] == str(ROWS_VERSION)
    with zipfile.ZipFile(wheel) as packed:
        assert "holdfast_check/py.typed" in packed.namelist()
        packed.extractall(place)
    for name in ("numpy", "numpy.libs"):
        folder = Path(np.__file__).parents[1] / name
        if folder.exists():
            os.symlink(folder, place / name)
    program = (
        "import sys; sys.path.insert(0, sys.argv.pop(1)); from holdfast_check.__main__ import main; code = main(sys.argv[1:]);"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'holdfast', 'onnx', 'cryptography'})); sys.exit(code)"
    )
    walked = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(place), str(made / "signed.zip"), "--public-key", str(made / "maker.pub.pem")],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert walked.returncode == 0, walked.stdout + walked.stderr
    assert "1 of 1 proved claims have an accepted certificate" in walked.stdout
    assert walked.stdout.splitlines()[-1] == "[]"


def test_what_the_bundle_says_is_what_the_run_holds(made: Path) -> None:
    """The fixture is not empty: the claim of the bundle is that of the run."""
    with Store.read(made / "run") as store:
        [record] = store.records()
        assert len(store.claims()) == 1
    with zipfile.ZipFile(made / "plain.zip") as bundle:
        [line] = json.loads(bundle.read("claims.json"))["records"]
    assert line["question"] == record.question


def test_a_violated_property_is_no_claim_without_certificate(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list with a property that holds and one that is violated: the first has a proof, the second a witness, and all held."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        (made / "sat.vnnlib").write_text(SQUARE + "(assert (>= Y_0 1.9))\n")
        (made / "list.csv").write_text("small.onnx,unsat.vnnlib,60\nsmall.onnx,sat.vnnlib,60\n")
        assert said_by("verify", "list.csv", "--out", "both", "--certificates") == 0
        with Store.read("both") as store:  # The witness of the second is no certificate of an unsat answer.
            assert store.certificates() == {Key(0, 0): (0.0, "")}
        assert said_by("bundle", "both", "-o", "both.zip") == 0
        capsys.readouterr()
        # Nobody signed it, so that the exit code says that not all was checked.
        assert main(["both.zip", "--model", "small.onnx"]) == 3
    told = capsys.readouterr().out
    assert "certificates: ok, 1 of 1 proofs and 1 of 1 witnesses accepted" in told, told
    assert "claims: ok, 1 of 1 proved claims have an accepted certificate" in told
    assert "it is not so that y_0 < " in told
