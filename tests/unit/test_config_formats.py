"""Private formats in the configuration: what five lines can say, and what stops the start with a message in four parts."""

from __future__ import annotations

import pytest
import yaml

from trainer_exporter import config
from trainer_exporter.catalogue import catalogue
from trainer_exporter.config_formats import units
from trainer_exporter.errors import ConfigError
from trainer_exporter.model import FIELDS

PATTERN = {"name": "heron", "pattern": r"it (?P<step>\d+) \| ce (?P<loss>\S+) \|"}
JSON = {"name": "kestrel", "kind": "json", "keys": {"it": "step", "ce": "loss"}}


def loaded(*formats: object, sources: object = None) -> config.Config:
    return config.parse(yaml.safe_dump({"formats": list(formats), "sources": sources or []}), file="config.yml")


def test_a_name_and_a_pattern_are_enough() -> None:
    (spec,) = loaded(PATTERN).formats

    assert [(place.key, place.field) for place in spec.places] == [("step", "step"), ("loss", "loss")]
    assert spec.line is not None
    assert spec.line.contains == " | ce "


def test_a_group_with_another_name_is_mapped() -> None:
    (spec,) = loaded({"name": "heron", "pattern": r"it (?P<it>\d+) ce (?P<loss>\S+)", "fields": {"it": "step"}}).formats

    assert {place.key: place.field for place in spec.places} == {"it": "step", "loss": "loss"}


def test_the_loss_of_an_evaluation_is_not_that_of_the_training() -> None:
    (spec,) = loaded({**PATTERN, "eval": True}).formats

    assert [place.field for place in spec.places] == ["step", "eval_loss"]


def test_lines_with_keys_are_searched_for_by_the_key_of_the_step() -> None:
    with_step, without = loaded(
        JSON, {"name": "jay", "kind": "key_value", "keys": {"crossent": "loss", "speed": "tokens_per_second"}}
    ).formats

    assert with_step.contains == ('"it"',)
    assert without.contains == ("crossent", "speed")


@pytest.mark.parametrize("field", sorted(FIELDS))
def test_every_unit_of_a_figure_has_a_factor(field: str) -> None:
    assert units(field)
    assert all(factor > 0 for factor in units(field).values())


BROKEN: dict[str, tuple[dict[str, object], str, str, str]] = {
    "no_name": ({"pattern": "x"}, "formats[0].name", "nothing", "a text"),
    "bad_name": ({**PATTERN, "name": "my format"}, "formats[0].name", "'my format'", "letters, digits"),
    "unknown_key": ({**PATTERN, "regex": "x"}, "formats[0].regex", "an unknown key", "pattern"),
    "mistyped_name": ({"nane": "heron", "pattern": "x"}, "formats[0].nane", "an unknown key", "; name is near"),
    "mistyped_pattern": ({"name": "heron", "patern": "x"}, "formats[0].patern", "an unknown key", "; pattern is near"),
    "unknown_kind": ({**JSON, "kind": "xml"}, "formats[0].kind", "'xml'", "one of pattern, json, csv, key_value"),
    "nothing_to_read_by": ({"name": "heron"}, "formats[0].pattern", "nothing", "a text"),
    "pattern_for_json": ({**JSON, "pattern": "x"}, "formats[0].pattern", "'x'", "no such key with kind: json"),
    "columns_for_json": ({**JSON, "columns": ["step"]}, "formats[0].columns", "['step']", "no such key with kind: json"),
    "no_group": ({**PATTERN, "pattern": "loss: .*"}, "formats[0].pattern", "'loss: .*'", "at least one named group"),
    "bad_pattern": ({**PATTERN, "pattern": "loss ("}, "formats[0].pattern", "at character 6", "a regular expression"),
    "runaway": ({**PATTERN, "pattern": r"(?P<loss>(\d+)*)loss"}, "formats[0].pattern", "may run for ever", "next character decides"),
    "no_text": ({**PATTERN, "pattern": r"(?P<step>\d+) (?P<loss>\S+)"}, "formats[0].pattern", "no fixed text", "contains"),
    "short_contains": ({**PATTERN, "contains": "ce"}, "formats[0].contains", "'ce'", "3 bytes or more"),
    "unknown_group": ({**PATTERN, "pattern": r"ce: (?P<crossent>\S+)"}, "formats[0].pattern", "'crossent'", "a word for it in fields"),
    "unknown_figure": ({**JSON, "keys": {"it": "steps"}}, "formats[0].keys.it", "'steps'", "target_steps"),
    "no_such_group": ({**PATTERN, "fields": {"it": "step"}}, "formats[0].fields.it", "no group of this name", "step, loss"),
    "no_keys": ({"name": "kestrel", "kind": "json"}, "formats[0].keys", "0 figures", "a mapping of 1 to 64"),
    "keys_as_list": ({**JSON, "keys": ["it"]}, "formats[0].keys", "['it']", "a mapping"),
    "number_as_key": ({**JSON, "keys": {1: "step"}}, "formats[0].keys.1", "'step'", "a text on either side"),
    "unknown_unit": ({**PATTERN, "units": {"loss": "nats"}}, "formats[0].units.loss", "'nats'", "one of K, M"),
    "unit_of_nothing": ({**PATTERN, "units": {"grad_norm": "K"}}, "formats[0].units.grad_norm", "does not read", "loss, step"),
    "short_key": ({**JSON, "kind": "key_value"}, "formats[0].keys.it", "too short", "contains"),
    "metrics_as_text": ({**PATTERN, "metrics": "acc"}, "formats[0].metrics", "'acc'", "a list of texts"),
    "eval_as_text": ({**PATTERN, "eval": "yes"}, "formats[0].eval", "'yes'", "true or false"),
    "closes": ({**PATTERN, "closes": "(x+)+done"}, "formats[0].closes", "may run for ever", "next character"),
    "separator": ({"name": "r", "kind": "csv", "columns": ["step"], "separator": ".."}, "formats[0].separator", "'..'", "one character"),
    "column": ({"name": "r", "kind": "csv", "columns": ["step", "x"]}, "formats[0].columns", "'x'", "one of"),
    "not_a_column": (
        {"name": "r", "kind": "csv", "columns": ["step"], "keys": {"ce": "loss"}},
        "formats[0].keys.ce",
        "no column",
        "one of columns: step",
    ),
}


@pytest.mark.parametrize(("format_", "key", "found", "expected"), BROKEN.values(), ids=BROKEN.keys())
def test_a_message_has_four_parts(format_: dict[str, object], key: str, found: str, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(format_)

    assert str(caught.value).startswith(f"config.yml: {key}: found ")
    assert found in caught.value.found
    assert expected in caught.value.expected


def test_two_formats_have_two_names() -> None:
    with pytest.raises(ConfigError, match=r"formats\[1\]\.name: found 'heron', expected a name that no format before it has"):
        loaded(PATTERN, {**JSON, "name": "heron"})


def test_the_name_of_a_format_of_the_package_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"formats\[0\]\.name: found 'megatron'"):
        catalogue(loaded({**PATTERN, "name": "megatron"}))


def test_a_source_can_be_pinned_to_a_format_that_exists() -> None:
    sources = [{"path": "/data/a.log", "format": "heron"}, {"path": "/data/b.log", "format": "megatron"}]
    assert catalogue(loaded(PATTERN, sources=sources))[0].name == "heron"

    with pytest.raises(ConfigError, match=r"sources\[0\]\.format: found 'hern', expected one of .*heron"):
        catalogue(loaded(PATTERN, sources=[{"path": "/data/a.log", "format": "hern"}]))
