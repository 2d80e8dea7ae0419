"""Which expressions can give anything where only some series exist: structure alone, so that nothing of PromQL is evaluated twice."""

from __future__ import annotations

import pytest

from rulebook import rules
from trainer_exporter.backtest.emptiness import NotUnderstoodError, may_give

KNOWN = {"loss", "lr", "run:labels:info"}


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        ("loss > 2", True),
        ("temperature > 2", False),
        ("2 < temperature", False),
        ("temperature * on (run) group_left (team, owner) run:labels:info", False),
        ("loss * on (run) group_left () run:labels:info", True),
        ("temperature and loss", False),
        ("loss and on (run) temperature", False),
        ("loss unless on (run) temperature", True),
        ("temperature unless loss", False),
        ("temperature or loss", True),
        ("temperature or on (run) loss and lr", True),
        ("temperature and loss or power", False),
        ("(temperature or loss) and power", False),
        ("loss > bool 1 == 1", True),
        ("-loss ^ 2", True),
        ('max by (run) (last_over_time(temperature{kind=~"a|b"}[2m]))', False),
        ('max(last_over_time(loss{kind=~"a|b", run!=""}[2m] offset 5m)) by (run)', True),
        ("sum without () (loss @ end())", True),
        ("topk by (run) (1, count by (run) (temperature)) > bool 0", False),
        ("max_over_time((temperature > 1)[1h:15s])", False),
        ("max_over_time((loss > 1)[1h:15s])", True),
        ("time() - loss > 1e3", True),
        ("time() - temperature > 0x10", False),
        ("clamp_min(2 * temperature or loss * 0, 3600)", True),
        ("absent(temperature)", True),
        ("absent_over_time(temperature[5m]) and loss", True),
        ("vector(1)", True),
        ("scalar(temperature) > bool NaN", True),
        ('{__name__=~"gpu_.*"}', True),
        ('label_replace(temperature, "a", "$1", "b", "(.*)")', False),
        ('label_replace(loss, "a", "$1 or (", "b", "\\"")', True),
        ("loss # or temperature\n * temperature", False),
        ("histogram_quantile(0.9, sum by (le) (rate(temperature[5m])))", False),
        ("LOSS or temperature", False),
        ("loss OR temperature", True),
    ],
)
def test_an_expression_gives_something_only_where_its_operands_do(expr: str, expected: bool) -> None:
    assert may_give(expr, KNOWN.__contains__) is expected


@pytest.mark.parametrize("expr", ["", "loss >", "(loss", "loss)", "loss{", "sum(loss", "§", "loss loss", ", loss", "loss[5m"])
def test_what_is_no_expression_is_not_read(expr: str) -> None:
    with pytest.raises(NotUnderstoodError):
        may_give(expr, KNOWN.__contains__)


def test_every_shipped_rule_is_read_and_without_input_only_what_asks_for_absence_gives_something() -> None:
    shipped = [rule for _, rule in rules()]

    given = {rule.get("alert") or rule["record"] for rule in shipped if may_give(rule["expr"], lambda _: False)}

    assert all(may_give(rule["expr"], lambda _: True) for rule in shipped)
    assert given == {"Watchdog", "TrainerExporterDown"}
