"""Models that are hard to read correctly ("hostile"): results are right or refused. Innocent ones are proved.

Each hostile module is run through the two capabilities with a proof alone, and through another one in turn.
Other entry points and views are samples. `python -m benchmarks.adversary` runs all combinations.
"""

import random
from collections.abc import Iterable

import judge
import numpy as np
import pytest
import torch
from judge import CAPABILITIES, ENTRIES, Case, NoWay, Trial, capabilities_of
from zoo import HOSTILE, INNOCENT

import holdfast as hf
from sizes import FULL

ALONE = ("bounds", "radius inf, proof alone")
IN_TURN = [capability for capability in CAPABILITIES if capability not in (*ALONE, "words")]
SLOW = ("radius inf, tight", "risk")  # At full size for every fourth module only.
HERE = [
    name
    for name, case in HOSTILE.items()
    if case.capabilities is None or name.startswith("einsum") or name.endswith("relu on the base")
]
BY_FILE = [name for name, case in HOSTILE.items() if case.capabilities is None and "writes into" not in name]


@pytest.fixture(autouse=True)
def _same_chance() -> None:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)


def assert_never_wrong(entry: str, case: Case, capabilities: Iterable[str]) -> None:
    try:
        trial = Trial(entry, case)
    except NoWay as error:
        pytest.skip(str(error).splitlines()[0])
    judged = {capability: trial.examine(capability) for capability in capabilities}
    wrong = [
        f"{capability}: {found.detail}" for capability, found in judged.items() if found.verdict == "wrong"
    ]
    assert not wrong, "\n".join(wrong)


def capabilities_in_turn(place: int, case: Case) -> list[str]:
    """A capability with a proof alone (at full size both), and, for every fourth module, one other in turn."""
    if case.substitutes is not None or case.capabilities is not None:
        return list(capabilities_of(case))
    alone = list(ALONE) if FULL else [ALONE[place // 2 % 2]]
    if place % 4 and not FULL:
        return alone
    capability = IN_TURN[(place if FULL else place // 4) % len(IN_TURN)]
    return alone if FULL and capability in SLOW and place % 4 else [*alone, capability]


@pytest.mark.parametrize(("place", "name"), list(enumerate(HERE)), ids=HERE)
def test_a_hostile_module_is_never_answered_wrongly(place: int, name: str) -> None:
    assert_never_wrong("from_torch", HOSTILE[name], capabilities_in_turn(place, HOSTILE[name]))


@pytest.mark.parametrize("name", BY_FILE[::5])
def test_an_exported_hostile_module_is_never_answered_wrongly(name: str) -> None:
    case = HOSTILE[name]
    assert_never_wrong("from_export", case, ALONE if case.substitutes is None else ["words"])


@pytest.mark.parametrize("name", BY_FILE[2::24])
def test_a_hostile_module_from_onnx_is_never_answered_wrongly(name: str) -> None:
    case = HOSTILE[name]
    assert_never_wrong("from_onnx", case, ALONE if case.substitutes is None else ["words"])


@pytest.mark.parametrize(
    "name",
    [name for name, case in HOSTILE.items() if case.substitutes is None and case.capabilities is None][::9],
)
def test_a_hostile_function_is_never_answered_wrongly(name: str) -> None:
    assert_never_wrong("from_callable", HOSTILE[name], ["radius inf, proof alone", "radius 0", "saliency"])


@pytest.fixture
def no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proofs end by themselves; with a limit, the speed of the machine would decide whether there is one."""
    monkeypatch.setattr(judge, "QUICK", hf.Stop())


@pytest.mark.usefixtures("no_limit")
@pytest.mark.parametrize("name", INNOCENT)
def test_an_innocent_module_gets_its_proof(name: str) -> None:
    case = INNOCENT[name]
    trial = Trial("from_torch", case)
    for capability in ["words"] if case.substitutes is not None else [*ALONE, "worst"]:
        found = trial.examine(capability)
        assert (found.verdict, found.detail) == ("right", "proved"), capability


@pytest.mark.usefixtures("no_limit")
@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if entry in ("from_export", "from_onnx")])
@pytest.mark.parametrize("name", ["a residual block in place", "weight norm", "words"])
def test_an_innocent_file_gets_its_proof(name: str, entry: str) -> None:
    case = INNOCENT[name]
    found = Trial(entry, case).examine("radius inf, proof alone" if case.substitutes is None else "words")
    assert (found.verdict, found.detail) == ("right", "proved")
