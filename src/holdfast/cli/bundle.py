"""`holdfast bundle` and `holdfast verify-bundle`: find the files of the model, pack a run, check a bundle."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rich.console import Console

from holdfast.certificates.checking import CertificateCheck, check_certificates
from holdfast.certificates.comparison import compare_with_questions
from holdfast.certificates.stored_claim import Claimed, Judged
from holdfast.cli.prove import PROOFS
from holdfast.cli.views.findings import report_findings
from holdfast.cli.views.output import line
from holdfast.commands.check import CheckSettings, build_again, stored_rows
from holdfast.commands.check import findings as findings_of_run
from holdfast.commands.options import ModelOptions
from holdfast.commands.reading.model import load_network
from holdfast.errors import BadInput, HoldfastError, StoreError, UnreadableFile
from holdfast.evidence import bundle_verification
from holdfast.evidence.archive import unpack
from holdfast.evidence.bundle import MODEL, BundleInputs, write_bundle
from holdfast.evidence.checker_results import judge_certificates
from holdfast.evidence.contents import RUN
from holdfast.evidence.finding import Finding
from holdfast.evidence.model import ModelFile, name_files
from holdfast.network.fingerprint import combine_hashes, of_file, of_output
from holdfast.network.onnx import external_files, of_onnx
from holdfast.question import Question
from holdfast.report import write_report
from holdfast.report.page import Place
from holdfast.result import Record, has_proof
from holdfast.store import Store

if TYPE_CHECKING:
    from holdfast.evidence.keys import PublicKey

ONNX, EXPORTED = (".onnx", ".onnx.gz"), ".pt2"


def bundle(
    run: Path,
    out: Path,
    model: str | None,
    with_model: bool,
    proofs: Path | None,
    gate: Path | None,
    console: Console,
) -> None:
    with Store.read(run) as store:
        files = model_files(store.question, model)
    if proofs is None and (run / PROOFS).is_dir():
        proofs = run / PROOFS
    made = write_bundle(run, out, BundleInputs(files, with_model, proofs, gate))
    line(console, "run", f"fingerprint {made.fingerprint}")
    names = (
        ", ".join(file.name for file in files)
        if files
        else "no file of it was found: the bundle names it by the hash in the run"
    )
    line(
        console,
        "model",
        names if with_model or not files else f"{names}; only its digest is in the bundle (see --with-model)",
    )
    line(
        console,
        "claims",
        f"{made.claims} proved bounds, {made.certified} with a certificate; {made.witnesses} counterexamples",
    )
    line(console, "manifest", f"sha256 {made.manifest}, {made.files} files")
    if not made.read_by_others:
        line(
            console,
            "note",
            "the package in-toto-attestation is not installed, so the statement was not parsed by a second "
            "implementation",
            warns=True,
        )
    line(console, "bundle", str(made.path))
    line(console, "next", f"holdfast sign {shlex.quote(str(made.path))} --key KEY.pem")


def model_files(question: Question, given: str | None) -> tuple[ModelFile, ...]:
    """The files of the model of a run, where they are now or where the run found them.

    Empty if code makes the model, or if no file is there. StoreError if the file is another model.
    """
    if question.command == "verify" and question.asked.specification:
        return _of_instances(question, given)
    options = dict(question.options.get("network") or {})
    name = given if given is not None else str(options.get("model", ""))
    path = _find_file(name, question.begun_in) if name.endswith((*ONNX, EXPORTED)) else None
    if path is None:
        if given is not None and ":" not in given:
            raise StoreError(f"{given}: no such file, or not a model file: give a .onnx or .pt2 file.")
        return ()
    read = ModelOptions(
        str(path),
        constants=options.get("constants") or [],
        black_box=bool(options.get("black_box")),
        output=options.get("output"),
        inputs=options.get("inputs"),
    )  # A file is read as data, never as code.
    if name.endswith(EXPORTED):
        own = combine_hashes(of_file(path), of_output(read.output))
    else:
        own = (
            load_network(read).fingerprint if read.constants or read.output or read.inputs else of_onnx(path)
        )
    if own != question.model.fingerprint:
        raise StoreError(
            f"{path}: not the model of this run, whose hash is {question.model.fingerprint}: this is {own}. "
            "Give --model."
        )
    return _with_beside(path)


def _of_instances(question: Question, given: str | None) -> tuple[ModelFile, ...]:
    """For `verify`: the network of its instances if they all have the same one, else nothing.

    The list of instances is not read again to find files.
    """
    networks = {str(line[2]) for line in question.asked.specification}
    if len(networks) != 1:
        return ()
    [digest] = networks
    name = given or str((question.options.get("network") or {}).get("model", ""))
    path = _find_file(name, question.begun_in) if name.endswith((*ONNX, EXPORTED)) else None
    if path is None:
        if given is not None:
            raise StoreError(f"{given}: no such file.")
        return ()
    if (of_onnx(path) if path.name.endswith(ONNX) else of_file(path)) != digest:
        raise StoreError(f"{path}: not the network of this run, whose hash is {digest}. Give --model.")
    return _with_beside(path)


def _find_file(name: str, begun_in: str) -> Path | None:
    places = [Path(name), Path(begun_in) / name]
    return next((path for path in places if path.is_file()), None)


def _with_beside(path: Path) -> tuple[ModelFile, ...]:
    return name_files([path, *(external_files(path) if path.name.endswith(ONNX) else ())])


def verify(
    path: Path,
    keys: Sequence[Path],
    wanted: CheckSettings,
    out: Path | None,
    page: Path | None,
    to: Path | None,
    console: Console,
) -> None:
    """Print every finding when it is known, and exit with the code of the worst.

    page: file for a page of the run, written by the auditor. to: folder for the unpacked files if nothing
    differs.
    """
    if to is not None and to.exists():
        raise BadInput(f"--unpack {to}: exists already; give a new folder.")
    if page is not None and page.suffix not in (".html", ".htm"):
        raise BadInput(f"--page {page}: give a .html file.")
    public = []
    if keys:
        from holdfast.evidence.keys import read_public_key

        public = [read_public_key(key) for key in keys]
    with TemporaryDirectory(prefix="holdfast-verify-") as place:
        found: Iterator[Finding] = (
            _name_finding(one, place, path) for one in findings(path, Path(place), public, wanted)
        )
        if page is not None:
            found = _with_page(found, Path(place), page, tuple(key.fingerprint for key in public))
        if to is not None:
            found = _with_files(found, path, to)
        report_findings(found, "verify-bundle", {"bundle": str(path)}, wanted, out, console)


def _with_files(found: Iterator[Finding], path: Path, to: Path) -> Iterator[Finding]:
    """The findings; after them, unpack the files of the bundle unless something differs."""
    states = set[str]()
    for one in found:
        states.add(one.state)
        yield one
    if "differs" in states:
        yield Finding("unpacked", "unchecked", f"{to} is not written: something differs")
        return
    to.mkdir(parents=True)
    yield Finding("unpacked", "ok", f"{len(unpack(path, to))} files into {to}")


def _with_page(
    found: Iterator[Finding], folder: Path, page: Path, keys: tuple[str, ...]
) -> Iterator[Finding]:
    """The findings; after them, write a page of the run in the bundle unless something differs."""
    states = set[str]()
    for one in found:
        states.add(one.state)
        yield one
    if "differs" in states:
        yield Finding("your page", "unchecked", f"{page} is not written: something differs")
        return
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with Store.read(folder / RUN) as store:
        yield Finding(
            "your page", "ok", f"{write_report(store, page, Place(RUN, now, bundled=True, signed=keys))}"
        )


def _name_finding(one: Finding, place: str, path: Path) -> Finding:
    """The finding with the name of the bundle in place of the folder where it was unpacked."""
    told, *details = (text.replace(f"{place}/", f"{path.name}: ") for text in (one.told, *one.details))
    return replace(one, told=told, details=tuple(details))


def findings(
    path: Path, folder: Path, keys: "Sequence[PublicKey]", wanted: CheckSettings
) -> Iterator[Finding]:
    """Check the bundle from the outside inwards. Nothing is opened that differs from the listing."""
    try:
        names = unpack(path, folder)
    except UnreadableFile as error:
        yield Finding("archive", "differs", str(error))
        return
    yield Finding("archive", "ok", f"{len(names)} files, nothing else in the archive")
    outside = [bundle_verification.check_listing(names, folder)]
    if outside[0].state == "ok":
        outside += [
            bundle_verification.check_statement(folder),
            bundle_verification.check_signatures(folder, keys),
        ]
    yield from outside
    if any(one.state == "differs" for one in outside):
        return
    asked = _with_model(folder, wanted)
    rest = findings_of_run(folder / RUN, asked)
    for one in rest:
        yield one
        if one.what == "seals":
            break
    if one.state == "differs":
        return
    try:
        yield from bundle_verification.check_contents(folder)
        given = Path(wanted.files["model"]) if "model" in wanted.files else None
        yield _digests(folder, given)
        models = bundle_verification.find_models(folder, given)
        found = list(check_certificates(folder, models))
        yield judge_certificates(
            folder,
            found,
            again=asked is not None,
            compared=_compare_certificates(folder, asked, found, models),
        )
    except HoldfastError as error:  # Contents of a foreign run or JSON file may be invalid anywhere.
        yield Finding("contents", "differs", str(error))
        return
    if asked is None:
        yield Finding(
            "witnesses",
            "unchecked",
            "give --model and --data to evaluate the model at them",
        )
    yield from rest


def _compare_certificates(
    folder: Path, wanted: CheckSettings | None, found: Sequence[CertificateCheck], models: Mapping[str, Path]
) -> dict[Claimed, Judged]:
    """Compare certificates with the question that model and data define.

    Empty if these were not given, or if the question cannot be rebuilt, which another finding reports.
    """
    accepted: dict[str, list[CertificateCheck]] = {}
    for one in found:
        if one.accepted and one.kind == "proof":
            accepted.setdefault(one.question, []).append(one)
    judged: dict[Claimed, Judged] = {}
    if wanted is None or not accepted:
        return judged
    with Store.read(folder / RUN) as store, suppress(HoldfastError):
        claimed = {
            r.key: r
            for r in store.iterate_readable()
            if isinstance(r, Record) and r.question in accepted and has_proof(r)
        }
        command, built = build_again(store.question, wanted.files, wanted.trust)
        for part in command.portions(built):
            for problem in part.problems:
                for rows, records in stored_rows(store, problem, claimed):
                    some = problem.take(rows.to(problem.region.centre.device))
                    judged |= dict(
                        compare_with_questions(
                            some, records, accepted, models, folder, str(store.provenance.get("torch"))
                        )
                    )
    return judged


def _digests(folder: Path, given: Path | None) -> Finding:
    """Compare the digests in the bundle with the given model file, or else with the one in the bundle."""
    with Store.read(folder / RUN) as store:
        question = store.question
    own = _in_bundle(folder)
    if len(own) != 1 and any((folder / MODEL).rglob("*")):
        return Finding("digests", "differs", f"{MODEL} holds {len(own)} networks, but the run has one")
    path = given if given is not None and given.is_file() else own[0] if len(own) == 1 else None
    try:
        files = () if path is None else model_files(question, str(path))
    except StoreError as error:
        return Finding("digests", "differs", str(error))
    return bundle_verification.check_model(folder, question, files)


def _in_bundle(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / MODEL).glob("*") if path.name.endswith((*ONNX, EXPORTED)))


def _with_model(folder: Path, wanted: CheckSettings) -> CheckSettings | None:
    """The settings with the model of the bundle if none was given; None if nothing is to be recomputed."""
    if not wanted.files:
        return None
    own = _in_bundle(folder)
    return (
        wanted
        if "model" in wanted.files or len(own) != 1
        else replace(wanted, files={**wanted.files, "model": str(own[0])})
    )
