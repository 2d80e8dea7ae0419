"""The part ``evidence`` of the configuration."""

from __future__ import annotations

import pytest

from trainer_exporter.config import parse
from trainer_exporter.config_evidence import EvidenceConfig
from trainer_exporter.errors import ConfigError


def loaded(text: str) -> EvidenceConfig:
    return parse(text, file="train.yml").evidence


def test_it_is_off_by_default() -> None:
    assert loaded("") == EvidenceConfig(enabled=False)


def test_all_of_it_can_be_said() -> None:
    config = loaded(
        "evidence: {enabled: true, directory: /srv/evidence, maximum: 1GiB, after: 2m, cool_down: 1h, ras: '[::1]:28029',"
        " flight_recorder: ['/scratch/{run}/trace_rank_*'], stacks: false, processes: 4}"
    )

    assert config == EvidenceConfig(
        enabled=True,
        directory="/srv/evidence",
        maximum_bytes=1 << 30,
        after_s=120.0,
        cool_down_s=3600.0,
        ras=("::1", 28029),
        flight_recorder=("/scratch/{run}/trace_rank_*",),
        stacks=False,
        processes=4,
    )


def test_nccl_need_not_be_asked() -> None:
    assert loaded("evidence: {enabled: true, ras: false}").ras is None


WRONG = {
    "unknown_key": ("{dir: /x}", "evidence.dir: found an unknown key, expected one of after, cool_down, directory, enabled,"),
    "relative_directory": ("{directory: evidence}", "evidence.directory: found 'evidence', expected an absolute path"),
    "too_small": ("{maximum: 10KiB}", "evidence.maximum: found '10KiB', expected a size such as"),
    "no_duration": ("{after: soon}", "evidence.after: found 'soon', expected a duration such as"),
    "no_port": ("{ras: localhost}", "evidence.ras: found 'localhost', expected host:port, with a port of 1 to 65535, or false"),
    "port_out_of_reach": ("{ras: 'localhost:70000'}", "evidence.ras: found 'localhost:70000', expected host:port"),
    "ras_on": ("{ras: true}", "evidence.ras: found True, expected host:port"),
    "relative_pattern": ("{flight_recorder: [a/*]}", "evidence.flight_recorder[0]: found 'a/*', expected a pattern of absolute paths"),
    "no_list": ("{flight_recorder: /a/*}", "evidence.flight_recorder: found '/a/*', expected a list of texts"),
    "no_processes": ("{processes: 0}", "evidence.processes: found 0, expected a whole number, 1 or more"),
}


@pytest.mark.parametrize(("text", "message"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told_with_its_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(f"evidence: {text}")

    assert str(caught.value).startswith(f"train.yml: {message}")
