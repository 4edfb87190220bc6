"""`holdfast columns`: a description of a table that can be edited, and read again."""

from pathlib import Path

from cli_workshop import Ask

import holdfast as hf

TABLE = """age,income,job,rate,granted
30,50.5,clerk,,no
41,60,baker,2.5,yes
28,41.25,clerk,3,no
"""


def test_a_table_is_described_and_the_description_read_again(ask: Ask, tmp_path: Path) -> None:
    table, out = tmp_path / "bank.csv", tmp_path / "columns.json"
    table.write_text(TABLE)
    said = ask("columns", table, "--out", out, "--label-column", "granted", "--frozen", "age")
    assert said.code == 0
    columns = hf.Columns.read(out)
    assert [column.name for column in columns.each] == ["age", "income", "job", "rate", "rate is missing"]
    age, income, job, _, gap = columns.each
    assert (age.step, age.frozen, income.step, job.values) == (1.0, True, 0.0, ("baker", "clerk"))
    assert (gap.missing_of, gap.frozen) == ("rate", True)
    assert "whole numbers from 28 to 41; remove step if fractions may occur, frozen" in said.out
    assert "words (2 values: baker, clerk)" in said.out

    again = ask("columns", table, "--out", out)
    assert again.code != 0
    assert "exists already, perhaps with your changes" in again.err


def test_columns_that_do_not_exist_are_refused_before_anything_is_written(ask: Ask, tmp_path: Path) -> None:
    table, out = tmp_path / "bank.csv", tmp_path / "columns.json"
    table.write_text(TABLE)
    for option in ("--label-column", "--frozen"):
        said = ask("columns", table, "--out", out, option, "incom")
        assert said.code != 0
        assert "there is no column 'incom'; its columns are 'age', 'income'" in said.err
    assert not out.exists()
