"""The zoo of common models: a part of it is proved, with the answers that benchmarks/results/zoo.md states."""

import re
from collections import Counter
from pathlib import Path

import pytest
from benchmarks import model_zoo

PAGE = Path(__file__).parents[2] / "benchmarks" / "results" / "zoo.md"
# Cheap ones of each family, and those that need what was built for the zoo.
PART = (
    "xgboost_with_categories",
    "random_forest_behind_ordinal",
    "imputer_before_logistic_regression",
    "view_by_len",
    "policy_with_a_dict",
    "policy_with_a_fixed_goal",
)


def stated() -> dict[str, str]:
    """The answers of the page, by the name of the model."""
    answer = "proved|attacked|open|refused"
    return dict(re.findall(rf"^\| (\w+) \| (?:{answer}) \| ({answer}) \|", PAGE.read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", PART)
def test_a_part_of_the_zoo_is_proved(name: str) -> None:
    [one] = [case for case in model_zoo.CASES if case.name == name]
    outcome = model_zoo.judge(one)
    assert outcome.answer == "proved", outcome.reason
    assert stated()[name] == "proved"


def test_the_zoo_has_forty_models_and_the_page_states_each() -> None:
    families = Counter(case.family for case in model_zoo.CASES)
    assert families == {"tables": 14, "vision": 10, "sequences": 10, "text": 6}
    assert set(stated()) == {case.name for case in model_zoo.CASES}


def test_an_error_is_a_refusal_and_black_boxes_are_only_attacked() -> None:
    def broken() -> None:
        raise ValueError("no such layer\nmore")

    assert model_zoo.judge(model_zoo.Case("text", "broken", broken)).answer == "refused"
    assert model_zoo.judge(model_zoo.Case("text", "broken", broken)).reason == "no such layer"
    [neighbours] = [case for case in model_zoo.CASES if case.name == "nearest_neighbours"]
    assert model_zoo.judge(neighbours).answer == "attacked"
