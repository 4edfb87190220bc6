"""Every command that a document shows is run as it stands; every one that it names in passing exists, with its options."""

import functools
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.main

from holdfast.cli import app, main
from holdfast.datasets import digits
from holdfast_check.__main__ import main as check_proofs

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
SERVES = ("monitor", "serve")
OURS = ("holdfast", "holdfast-check")


def lines(block: str) -> Iterator[list[str]]:
    """The words of every line of a shell block, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def blocks(page: Path) -> list[list[str]]:
    """All lines of all shell blocks of a page, in order."""
    return [
        words
        for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", page.read_text(), re.DOTALL)
        for words in lines(block)
    ]


def files(page: Path) -> dict[str, str]:
    """What a page shows of files, by their names: ```csv people.csv."""
    return dict(re.findall(r"```\w+ (\w+\.\w+)\n(.*?)```", page.read_text(), re.DOTALL))


def steps(page: Path) -> list[list[str]]:
    """What a page's workflow for a CI runs."""
    text = "\n".join(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL))
    return [
        words
        for command in re.findall(r"run: (.+)", text)
        for part in command.split("&&")
        for words in lines(part)
    ]


def test_gitlab_runs_what_the_workflow_for_github_runs() -> None:
    """Its commands are those that `test_the_workflow_for_a_ci_runs` runs, in the parts of a file for GitLab."""
    yaml = pytest.importorskip("yaml")
    blocks_of_page = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "gate.md").read_text(), re.DOTALL)
    [job] = [read["robustness"] for read in map(yaml.safe_load, blocks_of_page) if "robustness" in read]
    own = [shlex.split(line) for line in [*job["script"], *job["after_script"]]]
    asked = [words for words in own if words[0] == "holdfast"]
    assert asked == [words for words in steps(ROOT / "docs" / "gate.md") if words[0] == "holdfast"]
    written = {asked[1][asked[1].index(option) + 1] for option in ("--junit", "--markdown")} | {asked[2][-1]}
    assert written <= {job["artifacts"]["reports"]["junit"], *job["artifacts"]["paths"]}


def passing(page: Path) -> list[list[str]]:
    """What is named in the middle of a sentence: `holdfast report RUN -o card.md`."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return [shlex.split(inline) for inline in re.findall(r"`(holdfast [^`]+)`", text)]


SHOWN = [page for page in PAGES if blocks(page)]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def run(words: list[str]) -> int:
    """By the command line itself, in this process; names with a star are the shell's to open."""
    if words[0] == "holdfast-check":
        return check_proofs(
            [
                path
                for word in words[1:]
                for path in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
            ]
        )
    try:
        main(words[1:])
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


@pytest.mark.parametrize("page", SHOWN, ids=lambda page: page.stem)
def test_every_command_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the page, in a folder that holds nothing but the files that it shows."""
    monkeypatch.chdir(tmp_path)
    for name, text in files(page).items():
        (tmp_path / name).write_text(text)
    for words in blocks(page):
        assert words[0] in OURS, f"{page.name}: only holdfast is run here, not {words[0]}"
        if tuple(words[1:3]) == SERVES:
            start_ask_and_stop(words)
        else:
            assert run(words) == 0, shlex.join(words)
    if page.stem == "README":
        assert (tmp_path / "runs/first/report.html").stat().st_size > 10_000
        assert len((tmp_path / "runs/first/records.csv").read_text().splitlines()) == 3


def start_ask_and_stop(words: list[str]) -> None:
    """The service is started as the page says but for the port, asked once, and stopped by Ctrl-C."""
    for extra in ("fastapi", "uvicorn"):
        pytest.importorskip(extra, reason=f"{extra} is not installed: pip install 'holdfast[serve]'")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", "from holdfast.cli import main; main()", *words[1:], "--port", str(port)]
    service = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment())
    try:
        body = json.dumps({"text": "where is my parcel", "k": "final"}).encode()
        answer = json.load(asked(f"http://127.0.0.1:{port}/score", body, service))
        assert "parcel" in json.dumps(answer)
    finally:
        service.send_signal(signal.SIGINT)
        _, told = service.communicate(timeout=600)
    assert b"Traceback" not in told


def asked(address: str, body: bytes, service: subprocess.Popen[bytes]) -> Any:
    request = urllib.request.Request(address, body, {"Content-Type": "application/json"})
    for _ in range(6000):
        try:
            return urllib.request.urlopen(request, timeout=600)
        except ConnectionError:
            pass
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionError):
                raise
        assert service.poll() is None, service.stderr.read() if service.stderr else ""
        time.sleep(0.1)
    raise AssertionError("the service did not begin to listen in time")


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}


def test_the_workflow_for_a_ci_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of docs/gate.md, with a small model and data of the names that it uses."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "models").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "models" / "mine.py").write_text(
        "from holdfast.datasets.digits_networks import digits_cnn as load\n"
    )
    data = digits("test")
    np.savez(tmp_path / "data" / "check.npz", x=data.x[:2].numpy(), y=data.y[:2].numpy())
    found = [words for words in steps(ROOT / "docs" / "gate.md") if words[0] == "holdfast"]
    [radius, gate, report] = found
    accepted = [*radius[: radius.index("--out")], "--out", "runs/accepted"]
    assert run(accepted) == 0
    assert run(radius) == 0
    assert run(gate) in (0, 1)  # both are decisions
    assert run(report) == 0
    assert {"gate.md", "gate.xml", "report.html"} <= {path.name for path in tmp_path.iterdir()}


@every_page
def test_what_is_named_in_passing_exists(page: Path) -> None:
    shown = (words for words in blocks(page) if words[0] == "holdfast")
    for words in [*passing(page), *shown, *(words for words in steps(page) if words[0] == "holdfast")]:
        check(words, page.name)


@functools.cache
def whole_command() -> Any:
    return typer.main.get_command(app)


def check(words: list[str], where: str) -> None:
    """Is there such a command, and does it have these options?"""
    command: Any = whole_command()
    rest = words[1:]
    while hasattr(command, "commands") and rest:
        name = rest.pop(0)
        assert name in command.commands, f"{where}: `{shlex.join(words)}`: there is no command {name}"
        command = command.commands[name]
    known = {option for parameter in command.params for option in parameter.opts} | {"--debug", "--help"}
    given = {word.split("=")[0] for word in rest if re.match(r"-{1,2}[a-z]", word)}
    assert given <= known, f"{where}: `{shlex.join(words)}`: no option {', '.join(given - known)}"


@pytest.mark.parametrize(
    "wrong",
    [
        "holdfast measure RUN",
        "holdfast radius --nrom 2",
        "holdfast monitor fit -m MODEL",
        "holdfast gate --at 1 -x",
    ],
)
def test_a_wrong_command_is_seen(wrong: str) -> None:
    with pytest.raises(AssertionError, match=r"there is no command|no option"):
        check(shlex.split(wrong), "here")


def test_most_commands_are_shown_somewhere() -> None:
    """A command that no page shows could rot in silence."""
    shown = {
        " ".join(words[1:3]) if words[1] == "monitor" else words[1]
        for page in PAGES
        for words in blocks(page)
    }
    top = whole_command()
    below = top.commands["monitor"]
    every = {name for name in top.commands if name != "monitor"} | {
        f"monitor {name}" for name in below.commands
    }
    assert every - shown <= {"demo", "verify", "equivalent"}, (
        "demo is `make demo`; verify and equivalent need files of the reader"
    )


def test_shell_blocks_are_all_that_shows_commands() -> None:
    """A command on a line of its own stands in a block that is run, and not in an indented one."""
    for page in PAGES:
        assert not re.findall(
            r"^    (?:\$ )?holdfast .*",
            re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL),
            re.MULTILINE,
        ), page.name


CI = ROOT / "examples" / "ci"


def ci_commands() -> list[tuple[str, list[str]]]:
    """The commands of holdfast in the templates, with example values in place of variables."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((CI / "action.yml").read_text())
    job = yaml.safe_load((CI / "gitlab.yml").read_text())[".robustness"]
    found = [("action.yml", step["run"]) for step in action["runs"]["steps"] if "run" in step]
    found += [("gitlab.yml", line) for line in [*job["script"], *job["after_script"]]]
    values = {"options": "--limit 2", "OPTIONS": "--limit 2", "at": "0.1", "AT": "0.1"}

    def example(match: re.Match[str]) -> str:
        return values.get(match[1] or match[2], "0.5")

    return [
        (file, shlex.split(part))
        for file, line in found
        for part in re.split(r"&&|;", re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}|\$(\w+)", example, line))
        if shlex.split(part)[0] == "holdfast"
    ]


def test_commands_of_the_templates_exist() -> None:
    """The composite action and the template for GitLab measure, gate and report with options that exist."""
    commands = ci_commands()
    for file, words in commands:
        check(words, file)
    for file in ("action.yml", "gitlab.yml"):
        assert [words[1] for name, words in commands if name == file] == ["radius", "gate", "report"]


def test_the_image_installs_a_cpu_build_of_torch_before_holdfast() -> None:
    """Its extras exist, and torch comes first from the index that the user names."""
    tomllib = pytest.importorskip("tomllib")
    text = (CI / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [chosen] = re.findall(r"holdfast\[([\w,]+)\]", text)
    assert set(chosen.split(",")) <= set(extras)
    assert text.index('PIP_INDEX_URL="$TORCH_CPU_INDEX" pip install --no-cache-dir torch') < text.index(
        "holdfast["
    )
    assert text.rstrip().endswith('ENTRYPOINT ["holdfast"]')


def ci_scripts() -> dict[str, list[str]]:
    """The shell lines of both templates in the order in which they run."""
    yaml = pytest.importorskip("yaml")
    action = yaml.safe_load((CI / "action.yml").read_text())
    job = yaml.safe_load((CI / "gitlab.yml").read_text())[".robustness"]
    steps = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    return {"action.yml": steps, "gitlab.yml": [*job["script"], *job["after_script"]]}


@pytest.mark.parametrize("file", ["action.yml", "gitlab.yml"])
def test_a_template_runs_with_programs_that_only_write_down_how_they_were_called(
    file: str, tmp_path: Path
) -> None:
    """Torch comes first, from the index of CPU builds; each line is run by bash, with values that need quotes."""
    (tmp_path / "bin").mkdir()
    for name in ("pip", "holdfast"):
        program = tmp_path / "bin" / name
        program.write_text(
            f'#!/bin/bash\necho "{name}|${{PIP_INDEX_URL:-usual}}|$*" >> calls.txt\ntouch gate.md\n'
        )
        program.chmod(0o755)
    values = {
        "model": "mine:load",
        "data": "check.npz",
        "at": "0.05",
        "min-certified": "0.9",
        "options": "--limit 2",
    }
    values |= {"requirements": "requirements.txt", "torch-cpu-index": "https://index.example/cpu"}
    variables = {name.upper().replace("-", "_"): value for name, value in values.items()}
    lines = [
        re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda m: values[m[1]], line) for line in ci_scripts()[file]
    ]
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    for line in lines:
        ran = subprocess.run(
            ["bash", "-e", "-c", line],
            cwd=tmp_path,
            env={**variables, "PATH": path, "GITHUB_STEP_SUMMARY": "summary.md"},
            capture_output=True,
            text=True,
        )
        assert not ran.returncode, (line, ran.stderr)
    calls = [line.split("|") for line in (tmp_path / "calls.txt").read_text().splitlines()]
    assert calls[0] == ["pip", "https://index.example/cpu", "install torch"]
    assert calls[1] == ["pip", "usual", "install holdfast -r requirements.txt"]
    assert [words.split()[0] for _, _, words in calls[2:]] == ["radius", "gate", "report"]
    assert "--model mine:load --data check.npz --limit 2" in calls[2][2]
    assert "--at 0.05 --min-certified 0.9" in calls[3][2]
