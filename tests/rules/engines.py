"""Every scene of every alert in every engine that is here: ``python tests/rules/engines.py [ALERT ...]`` prints a table, scenes by engine.

Engines are each promtool and each vmalert-tool found on PATH and in PROGRAMS_DIR (folders, parted by colons). For vmalert-tool the scenes
are rewritten: its word for expressions; groups cut where a rule asks for what another one of its group records, and functions that mean
something else there, as deploy/scale-out has them. Then come the files of deploy/scale-out, each checked by the program that it is for.
Exit code 1 when anything differs.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
SCALE_OUT = HERE.parents[1] / "deploy" / "scale-out"
sys.path[:0] = [str(SCALE_OUT)]

import build  # noqa: E402 - found by the line above

SCENES = sorted(HERE.glob("*_test.yml"))
ALERTS = re.compile(r'\bALERTS\b(?:\{[^}]*?\balertname="(\w+)")?')  # empty where a scene asks for alerts of any name
NAMED = re.compile(r"\balertname: (\w+)")
JOBS = (os.cpu_count() or 1) * 2  # the tools wait for their store much of the time
NEEDED = ("promtool", "vmalert-tool", "vmalert", "vmagent", "victoria-metrics")
HOW = """missing: {missing}
Debian has promtool (package prometheus). From Debian forky on it has VictoriaMetrics' programs too (package victoria-metrics, with vmagent,
vmalert and vmalert-tool); on an older one unpack that package, they need nothing but libc:
  apt-get download victoria-metrics && dpkg-deb -x victoria-metrics_*.deb programs
  PROGRAMS_DIR=programs/usr/bin make test-engines
"""


@dataclass(frozen=True)
class Engine:
    """A program that plays scenes."""

    name: str  # with its version
    program: Path

    @property
    def is_vm(self) -> bool:
        return self.program.name == "vmalert-tool"

    def differs(self, scenes: Path) -> str:
        """What the program says where it does not see what the scenes promise; empty when it does."""
        if not self.is_vm:
            return _said([self.program, "test", "rules", scenes.name], cwd=scenes.parent)
        with tempfile.TemporaryDirectory() as made:
            rewritten = Path(made) / scenes.name
            rewritten.write_text(yaml.safe_dump(for_vmalert(scenes, Path(made)), sort_keys=False))
            return _said([self.program, "unittest", "--disableAlertgroupLabel", f"--files={rewritten}"], cwd=Path(made))


def folders() -> list[str]:
    """Where programs are looked for."""
    return [*os.environ.get("PATH", "").split(os.pathsep), *filter(None, os.environ.get("PROGRAMS_DIR", "").split(os.pathsep))]


def program(name: str) -> Path | None:
    """The last one of that name: what PROGRAMS_DIR has outweighs what is installed."""
    found = [path for folder in reversed(folders()) if (path := shutil.which(name, path=folder))]
    return Path(found[0]).resolve() if found else None


def engines() -> Iterator[Engine]:
    """Every engine once, by version."""
    seen: set[str] = set()
    for name in ("promtool", "vmalert-tool"):
        for folder in folders():
            path = shutil.which(name, path=folder)
            if path and (engine := Engine(f"{name} {_version(path)}".strip(), Path(path).resolve())).name not in seen:
                seen.add(engine.name)
                yield engine


def _version(path: str) -> str:
    """Of a program; empty for VictoriaMetrics' tool, which does not tell."""
    told = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.\d+(?:\.\d+)?", told.stdout + told.stderr)
    return found[0] if found else ""


PAIR = re.compile(r"exp:\s*\[(.*?)\],?\s*\n\s*got:\s*\[(.*?)\s*\](?=\s*(?:alertname|groupname|expr|FAILED|\]|$))", re.DOTALL)


def figures_only(text: str) -> bool:
    """Whether the alerts are as promised, and only figures in their texts are not: windows and increase() are reckoned differently."""
    pairs = PAIR.findall(text)
    return bool(pairs) and "expr:" not in text and all(_without_figures(wanted) == _without_figures(seen) for wanted, seen in pairs)


def _without_figures(text: str) -> str:
    """What alerts say without its figures; their labels stay as they are."""
    return re.sub(r"Annotations:.*", lambda found: re.sub(r"\d+(?:\.\d+)?", "", found[0]), re.sub(r"[^\S\n]+", "", text)).strip()


def _said(command: list[str | Path], *, cwd: Path) -> str:
    played = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, cwd=cwd)
    return "" if played.returncode == 0 else (played.stdout + played.stderr).strip() or f"exit code {played.returncode}"


def for_vmalert(scenes: Path, folder: Path) -> dict[str, Any]:
    """A file of scenes as vmalert-tool reads it; the rules, cut into groups that do not ask for their own, are written to ``folder``."""
    content: dict[str, Any] = yaml.safe_load(scenes.read_text())
    pieces: dict[str, list[str]] = {}
    groups: list[dict[str, Any]] = []
    loaded = [group for file in content["rule_files"] for group in yaml.safe_load((scenes.parent / file).read_text())["groups"]]
    needed = wanted(scenes.read_text(), [rule for group in loaded for rule in group["rules"]])
    for group in loaded:
        rules = [rule for rule in group["rules"] if (rule.get("record") or rule["alert"]) in needed]
        cut = [
            {
                "name": f"{group['name']}-{number:02}",
                **({"interval": group["interval"]} if "interval" in group else {}),
                "rules": list(map(build.in_metricsql, piece)),
            }
            for number, piece in enumerate(build.apart(rules))
            if piece
        ]
        pieces[group["name"]] = [piece["name"] for piece in cut]
        groups += cut
    written = folder / "rules.yml"
    written.write_text(yaml.safe_dump({"groups": groups}, sort_keys=False))
    order = content.get("group_eval_order") or list(pieces)
    return {
        "rule_files": [str(written)],
        "evaluation_interval": content.get("evaluation_interval", "1m"),
        "group_eval_order": [piece for name in order for piece in pieces[name]],
        "tests": [_scene(scene) for scene in content["tests"]],
    }


def wanted(text: str, rules: Sequence[Mapping[str, Any]]) -> set[str]:
    """Names of the rules that scenes can see something of: the tool waits for its store after each group, and then there are fewer."""
    asked = ALERTS.findall(text)
    found = {rule["alert"] for rule in rules if "alert" in rule and (not all(asked) or rule["alert"] in {*asked, *NAMED.findall(text)})}
    found |= {rule["record"] for rule in rules if "record" in rule and rule["record"] in text}
    while True:
        more = {name for rule in rules if (rule.get("record") or rule["alert"]) in found for name in build.asked(rule) | build.told(rule)}
        if more <= found:
            return found
        found |= more


def _scene(scene: Mapping[str, Any]) -> dict[str, Any]:
    """Expressions under vmalert-tool's word for them, without the label that it puts onto ALERTS in spite of its own flag."""
    asked = [{**case, "expr": f'label_del({case["expr"]}, "alertgroup")'} for case in scene.get("promql_expr_test", ())]
    rest = {key: value for key, value in scene.items() if key != "promql_expr_test"}
    return {**rest, "metricsql_expr_test": asked} if asked else rest


def shipped() -> Iterator[tuple[str, str]]:
    """Each file of deploy/scale-out, and what its program has against it."""
    promtool, vmalert, vmagent = (program(name) for name in ("promtool", "vmalert", "vmagent"))
    assert promtool and vmalert and vmagent
    yield (
        "prometheus-agent.yml (promtool)",
        _said([promtool, "check", "config", "--agent", SCALE_OUT / "prometheus-agent.yml"], cwd=SCALE_OUT),
    )
    yield (
        "vmagent.yml (vmagent)",
        _said([vmagent, "-dryRun", "-promscrape.config.strictParse", f"-promscrape.config={SCALE_OUT / 'vmagent.yml'}"], cwd=SCALE_OUT),
    )
    yield "shards of prometheus-agent.yml (promtool)", _shards_by_promtool(promtool, 3)
    for name, rules in (("vmalert/rules.yml", SCALE_OUT / "vmalert" / "rules.yml"), ("alertmanager/rules/*.yml", build.RULES / "*.yml")):
        yield f"{name} (vmalert)", _said([vmalert, "-dryRun", f"-rule={rules}"], cwd=SCALE_OUT)
    yield "mimir/rules.yml (promtool)", _mimir_by_promtool(promtool)


def _shards_by_promtool(promtool: Path, shards: int) -> str:
    """Empty when each of 24 nodes belongs to one shard, and no shard is without nodes."""
    config = yaml.safe_load((SCALE_OUT / "prometheus-agent.yml").read_text())
    (job,) = config["scrape_configs"]
    job["static_configs"] = [{"targets": [f"node-{number}:19400" for number in range(24)]}]
    del job["file_sd_configs"]
    keep = job["relabel_configs"][-1]
    job["relabel_configs"][-2]["modulus"] = shards
    kept: list[list[str]] = []
    for shard in range(shards):
        keep["regex"] = str(shard)
        with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
            yaml.safe_dump({"scrape_configs": [job]}, file)
            file.flush()
            command = [promtool, "check", "service-discovery", "--timeout=5s", file.name, job["job_name"]]
            told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        kept.append([found["labels"]["instance"] for found in json.loads(told) if found["labels"]])
    whole = sorted(name for names in kept for name in names) == sorted(f"node-{number}" for number in range(24))
    return "" if whole and all(kept) else f"nodes by shard: {kept}"


def _mimir_by_promtool(promtool: Path) -> str:
    """promtool takes what Mimir's form has beside the namespace."""
    content = yaml.safe_load((SCALE_OUT / "mimir" / "rules.yml").read_text())
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        yaml.safe_dump({"groups": content["groups"]}, file)
        file.flush()
        return _said([promtool, "check", "rules", file.name], cwd=SCALE_OUT)


def _verdict(text: str) -> str:
    return "same" if not text else "same but for a figure" if figures_only(text) else "differs"


def main(chosen: list[str]) -> int:
    missing = [name for name in NEEDED if program(name) is None]
    if missing:
        sys.stderr.write(HOW.format(missing=", ".join(missing)))
        return 2
    found = list(engines())
    width = max(len(path.stem) for path in SCENES)
    sys.stdout.write(f"{'':{width}}  " + "  ".join(f"{engine.name:20}" for engine in found) + "\n")
    told: list[str] = []
    played = [path for path in SCENES if not chosen or path.name.removesuffix("_test.yml") in chosen]
    with ThreadPoolExecutor(JOBS) as pool:
        for path, said in zip(played, pool.map(lambda path: [engine.differs(path) for engine in found], played), strict=True):
            sys.stdout.write(f"{path.stem:{width}}  " + "  ".join(f"{_verdict(text):20}" for text in said) + "\n")
            sys.stdout.flush()
            told += [
                f"\n{path.stem}, {engine.name}:\n{text}\n" for engine, text in zip(found, said, strict=True) if _verdict(text) == "differs"
            ]
    for what, text in shipped():
        sys.stdout.write(f"{what}: {'taken' if not text else 'refused'}\n")
        told += [f"\n{what}:\n{text}\n"] if text else []
    sys.stdout.writelines(told)
    return 1 if told else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
