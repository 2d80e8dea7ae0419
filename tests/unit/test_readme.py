"""What the README says is there, is there, and what is there, it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from trainer_exporter import cli, config
from trainer_exporter.formats import registry

REPOSITORY = Path(__file__).parents[2]
README = (REPOSITORY / "README.md").read_text()


def alerts() -> set[str]:
    rules = [yaml.safe_load(path.read_text()) for path in sorted((REPOSITORY / "alertmanager" / "rules").glob("*.yml"))]
    return {rule["alert"] for file in rules for group in file["groups"] for rule in group["rules"] if "alert" in rule}


def test_it_lists_every_alert_and_no_other() -> None:
    assert set(re.findall(r"^\| \[(\w+)\]\(alertmanager/runbooks/\1\.md\)", README, re.MULTILINE)) == alerts()


def test_its_configurations_load() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)

    loaded = [config.parse(example, file="README.md") for example in examples]

    assert [source.labels["page"] for one in loaded for source in one.sources] == ["yes"]
    assert len([spec for one in loaded for spec in one.formats]) == 5


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([\w./-]+)\)", README))))
def test_its_links_lead_somewhere(path: str) -> None:
    assert (REPOSITORY / path).exists()


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    assert set(re.findall(r"(?m)(?:`|^)make ([a-z-]+)", README)) <= targets


def test_its_list_of_formats_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["formats"]) == 0

    assert f"```text\n{capsys.readouterr().out.rstrip()}\n```" in README


def test_every_format_says_in_one_line_what_it_reads() -> None:
    for known in registry():
        assert known.summary, known.name
        assert "\n" not in known.summary
