"""The documentation: links lead somewhere, commands exist, references are current, and the Chinese pages have what the English have."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from trainer_exporter import config

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(REPOSITORY / "deploy").rglob("README.md"),
    ]
)


def name(path: Path) -> str:
    return str(path.relative_to(REPOSITORY))


def shell(text: str) -> str:
    """The commands of a page."""
    return "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.fixture(scope="module")
def commands() -> set[str]:
    """What the command line offers."""
    told = subprocess.run([sys.executable, "-m", "trainer_exporter", "--help"], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"(?m)^    ([a-z][\w-]+)(?:\s|$)", told))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_the_commands_that_it_names_exist(page: Path, commands: set[str]) -> None:
    text = page.read_text()
    targets = set(re.findall(r"(?m)^([a-z-]+):", (REPOSITORY / "Makefile").read_text()))

    used = set(
        re.findall(r"(?m)(?:^|`|/|\$ )trainer-exporter ([a-z][\w-]*)", shell(text) + "\n" + "\n".join(re.findall(r"`[^`\n]+`", text)))
    )
    made = set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", text))

    assert commands >= {"serve", "replay"}
    assert used - commands == set()
    assert made - targets == set()


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=name)
def test_the_configurations_that_it_shows_load(page: Path) -> None:
    for example in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL):
        config.parse(example, file=page.name)


def test_the_references_are_what_the_code_says() -> None:
    checked = subprocess.run([sys.executable, DOCS / "build.py", "--check"], capture_output=True, text=True, check=False)

    assert (checked.returncode, checked.stdout) == (0, ""), "make docs"


def test_the_chinese_readme_has_the_same_sections() -> None:
    english, chinese = (
        re.findall(r"(?m)^(#+) ", re.sub(r"```.*?```", "", (REPOSITORY / file).read_text(), flags=re.DOTALL))
        for file in ("README.md", "README.zh-CN.md")
    )

    assert chinese == english, "README.zh-CN.md lacks a section of README.md, or has one too many"


def alerts(*severities: str) -> set[str]:
    """The names of all alerts, or of those that can have one of these severities."""
    files = [yaml.safe_load(path.read_text()) for path in (REPOSITORY / "alertmanager" / "rules").glob("*.yml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"] if "alert" in rule]
    return {rule["alert"] for rule in rules if not severities or rule["labels"]["severity"] in severities}


def test_whoever_is_paged_finds_the_page_in_the_guide() -> None:
    text = (DOCS / "on-call.md").read_text()

    assert {alert for alert in alerts("critical") if not re.search(rf"\b{alert}\b", text)} == set()


def test_every_alert_is_told_of_in_chinese() -> None:
    text = (DOCS / "zh-CN" / "runbooks.md").read_text()

    sections = dict(re.findall(r"(?ms)^## (\w+)\n(.*?)(?=^## |\Z)", text))

    assert set(sections) == alerts(), "docs/zh-CN/runbooks.md: a section an alert"
    assert [alert for alert, section in sections.items() if not ("**含义**" in section and "**先做**" in section)] == []


def test_the_chart_is_of_this_version() -> None:
    (version,) = re.findall(r'(?m)^version = "(.+)"$', (REPOSITORY / "pyproject.toml").read_text())

    chart = yaml.safe_load((REPOSITORY / "deploy" / "kubernetes" / "chart" / "Chart.yaml").read_text())

    assert (chart["version"], chart["appVersion"]) == (version, version)
