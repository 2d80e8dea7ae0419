"""Builds templates/runbooks.tmpl: the causes and the first remedies that a notification tells, from the runbooks that hold them.

Run it after a change of a runbook; with --check it changes nothing and fails where the file is not what the runbooks say.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
RUNBOOKS, BUILT = HERE / "runbooks", HERE / "templates" / "runbooks.tmpl"
REMEDIES = 3  # more than a screen of a telephone holds are in the runbook

HEAD = """{{/* Built by build.py from runbooks/, which is where to change it.

trainer.causes    what usually causes an alert of this name
trainer.remedies  what to decide first, and on what
*/}}
"""


def section(text: str, title: str) -> str:
    """The text under a heading of a runbook."""
    (found,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found).strip()


def causes(text: str) -> str:
    """A line that tells the likely causes."""
    return f"Likely causes: {' '.join(section(text, 'Causes').split())}\n"


def remedies(text: str) -> str:
    """The first remedies, a line each."""
    return "".join(f"{line}\n" for line in section(text, "Mitigation").splitlines() if line.startswith("* "))


def first(lines: str, number: int) -> str:
    """The first lines of several."""
    return "".join(lines.splitlines(keepends=True)[:number])


def template(name: str, told: dict[str, str]) -> str:
    """A definition that says for each alert what is told of it."""
    branches = [f'if eq .Labels.alertname "{alert}" }}}}{text}' for alert, text in sorted(told.items())]
    return f'{{{{ define "{name}" -}}}}\n{{{{ {"{{ else ".join(branches)}{{{{ end }}}}\n{{{{- end }}}}\n'


def built() -> str:
    """What the file should hold."""
    texts = {path.stem: path.read_text(encoding="utf-8") for path in RUNBOOKS.glob("*.md")}
    return "\n".join(
        (
            HEAD,
            template("trainer.causes", {name: causes(text) for name, text in texts.items()}),
            template("trainer.remedies", {name: first(remedies(text), REMEDIES) for name, text in texts.items()}),
        )
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where the file is outdated")
    if not parser.parse_args().check:
        BUILT.write_text(built(), encoding="utf-8")
        return 0
    if BUILT.exists() and BUILT.read_text(encoding="utf-8") == built():
        return 0
    sys.stdout.write("alertmanager/templates/runbooks.tmpl is not what the runbooks say: run alertmanager/build.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
