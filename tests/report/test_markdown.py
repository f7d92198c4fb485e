"""The Markdown table holds exactly the rows' numbers."""

from __future__ import annotations

from ebscfl.report.markdown import results_table

ROW = {
    "method": "rfca", "attack": "label-flip", "fa": 88.5, "ma": 88.75, "na": 90.0, "asr": 0.0, "air_printed": 1.5,
    "air_points": 1.375, "attacker_weight_share": 0.0,
}  # fmt: skip


def test_rows_and_columns() -> None:
    lines = results_table([{**ROW, "attack": "none", "asr": None}, ROW]).splitlines()
    assert len(lines) == 3
    assert lines[0].count("|") == lines[1].count("|") == lines[2].count("|") == 10
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        "RFCA", "label flip", "88.50", "88.75", "90.00", "0.00", "1.38", "1.50", "0.00",
    ]  # fmt: skip
    assert len(results_table([{**ROW, "attack": "none", "asr": None}], attacks_only=False).splitlines()) == 3
