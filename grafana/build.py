"""Builds the dashboards' JSON from the code in src/: every module there with a function ``build`` is a dashboard.

Run it after a change; with --check it changes nothing and fails where a file is not what the code builds.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES, BUILT = HERE / "src", HERE / "dashboards"


def dashboards() -> dict[str, str]:
    """The JSON of every dashboard, by file name."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    sys.path.insert(0, str(SOURCES))
    try:
        modules = {path.stem: importlib.import_module(path.stem) for path in sorted(SOURCES.glob("*.py"))}
    finally:
        sys.path.remove(str(SOURCES))
    encoder = JSONEncoder(sort_keys=True, indent=2)
    return {f"{name}.json": encoder.encode(module.build()) + "\n" for name, module in modules.items() if hasattr(module, "build")}


def outdated() -> list[str]:
    """Names of files that are missing, superfluous, or not what the code builds."""
    wanted = dashboards()
    present = {path.name: path.read_text(encoding="utf-8") for path in BUILT.glob("*.json")}
    return sorted(name for name in wanted.keys() | present.keys() if wanted.get(name) != present.get(name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 where a file is outdated")
    if parser.parse_args().check:
        stale = outdated()
        sys.stdout.write("".join(f"grafana/dashboards/{name} is not what grafana/src builds: run grafana/build.py\n" for name in stale))
        return 1 if stale else 0
    BUILT.mkdir(exist_ok=True)
    for name, text in dashboards().items():
        (BUILT / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
