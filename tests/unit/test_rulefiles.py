"""The order in which rule groups build on each other."""

from __future__ import annotations

from pathlib import Path

from trainer_exporter.backtest import rule_files
from trainer_exporter.rulefiles import group_order


def rule_file(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.yml"
    path.write_text(text)
    return path


def group(name: str, *rules: tuple[str, str]) -> str:
    """A group of recording rules: (name, expression)."""
    return f"  - name: {name}\n    rules:\n" + "".join(f"      - record: {record}\n        expr: {expr}\n" for record, expr in rules)


def test_a_group_comes_after_those_whose_records_it_reads(tmp_path: Path) -> None:
    first = rule_file(tmp_path, "a", "groups:\n" + group("last", ("run:c:x", "run:b:x + 1")) + group("middle", ("run:b:x", "run:a:x * 2")))
    second = rule_file(tmp_path, "b", "groups:\n" + group("first", ("run:a:x", "up")))

    order = group_order([first, second])

    assert order == ["first", "middle", "last"]


def test_whoever_reads_the_alerts_comes_after_all_others(tmp_path: Path) -> None:
    wall = rule_file(tmp_path, "a", "groups:\n" + group("wall", ("run:worst:x", "count(ALERTS)")))
    others = rule_file(tmp_path, "b", "groups:\n" + group("one", ("run:a:x", "up")) + group("two", ("run:b:x", "up")))

    order = group_order([wall, others])

    assert order == ["one", "two", "wall"]


def test_neither_a_comment_nor_an_annotation_orders_anything(tmp_path: Path) -> None:
    told = "      - alert: Foo\n        expr: up # not run:a:x\n        annotations:\n          summary: '{{ query \"run:a:x\" }}'\n"
    path = rule_file(tmp_path, "a", "groups:\n  - name: told\n    rules:\n" + told + group("maker", ("run:a:x", "up")))

    order = group_order([path])

    assert order == ["told", "maker"]


def test_groups_that_read_each_other_are_each_named_once(tmp_path: Path) -> None:
    path = rule_file(tmp_path, "a", "groups:\n" + group("one", ("run:a:x", "run:b:x")) + group("two", ("run:b:x", "run:a:x")))

    order = group_order([path])

    assert sorted(order) == ["one", "two"]


def test_the_shipped_groups_have_an_order_in_which_nothing_lags() -> None:
    order = group_order(rule_files(None))

    assert order.index("labels") < order.index("progress") < order.index("efficiency") < order.index("suspects") < order.index("wall")
    assert order.index("progress") < order.index("loss")
