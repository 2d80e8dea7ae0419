"""What arrives: each shipped receiver on a running Alertmanager, against stand-ins for the services, and the texts word for word."""

from __future__ import annotations

import contextlib
import json
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from email import message_from_string, policy
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

import stack
from rulebook import alerts

SHIPPED = stack.SHIPPED_ALERTMANAGER.parent
SNIPPETS = sorted(
    (*SHIPPED.glob("receivers/*.yml"), *SHIPPED.glob("routes/*.yml"), *stack.REPOSITORY.glob("deploy/action/alertmanager.yml"))
)
RUNBOOK = "https://github.com/trainer-exporter/trainer-exporter/blob/main/alertmanager/runbooks/TrainingNcclStall.md"
BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
HANG = {
    "labels": {
        "alertname": "TrainingNcclStall",
        "severity": "critical",
        "run": "pt-70b/a b",
        "cluster": "a",
        "team": "base",
        "owner": "ada",
    },
    "annotations": {
        "summary": "The training hangs in a collective operation",
        "description": "Run pt-70b hangs in a collective since step 4012: no step for 1m 32s. One rank does not take part.",
        "suspect": "node-2, GPU 1: process gone",
        "remedy": "Take the stacks first.",
        "runbook_url": RUNBOOK,
    },
}
TITLE = "Run pt-70b hangs in a collective since step 4012: no step for 1m 32s."
DASHBOARD = f"http://localhost:3000/d/trainer-run?var-run=pt-70b%2Fa+b&var-cluster=a&from={int((BEGAN.timestamp() - 3600) * 1000)}&to=now"


def snippet(path: Path) -> dict[str, Any]:
    """A snippet that is meant to be copied into alertmanager.yml."""
    return dict(yaml.safe_load(path.read_text()))


def with_snippet(path: Path) -> dict[str, Any]:
    """The shipped configuration with this snippet copied into it, as its comment says."""
    config = yaml.safe_load(stack.SHIPPED_ALERTMANAGER.read_text())
    added = snippet(path)
    config["receivers"] += added.get("receivers", [])
    pager = next(place for place, route in enumerate(config["route"]["routes"]) if route["receiver"] == "page-webhook")
    config["route"]["routes"][pager:pager] = added.get("routes", [])
    config["templates"] = [str(SHIPPED / pattern) for pattern in config["templates"]]
    return dict(config)


def amtool(*arguments: str) -> str:
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def receiver_of(config: Path, labels: Mapping[str, str]) -> list[str]:
    """Names of the receivers that a label set goes to."""
    said = amtool("config", "routes", "test", f"--config.file={config}", *(f"{name}={value}" for name, value in labels.items()))
    return said.strip().split(",")


@pytest.mark.parametrize("path", SNIPPETS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_snippet_fits_into_the_shipped_configuration_and_holds_no_secret(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(with_snippet(path)))

    said = amtool("check-config", str(config))

    assert "SUCCESS" in said
    named = re.findall(r"^\s*-?\s*(?:routing_key|api_url|auth_password|credentials|api_secret): (.*)$", path.read_text(), re.MULTILINE)
    assert set(named) <= {"FILL_IN"}


CRITICAL = {"alertname": "TrainingStalled", "severity": "critical", "run": "r"}
WARNING = {"alertname": "TrainingLossSpike", "severity": "warning", "run": "r"}


@pytest.mark.parametrize(
    ("name", "labels", "receivers"),
    [
        ("teams", CRITICAL | {"team": "nlp"}, ["page-nlp"]),
        ("teams", CRITICAL | {"team": "nlp", "page": "no"}, ["ticket-nlp"]),
        ("teams", WARNING | {"team": "nlp"}, ["ticket-nlp"]),
        ("teams", WARNING | {"team": "nlp", "owner": "ada"}, ["ticket-ada", "ticket-nlp"]),
        ("teams", WARNING | {"team": "nlp", "owner": "bob"}, ["ticket-nlp"]),
        ("teams", CRITICAL | {"team": "vision"}, ["page-webhook"]),
        ("teams", CRITICAL, ["page-webhook"]),
        ("teams", WARNING, ["ticket-webhook"]),
        ("opt-in", CRITICAL | {"page": "yes"}, ["page-webhook"]),
        ("opt-in", CRITICAL, ["ticket-webhook"]),
        ("opt-in", CRITICAL | {"page": "no"}, ["ticket-webhook"]),
        ("opt-in", {"alertname": "GpuLost", "severity": "critical", "instance": "n"}, ["page-webhook"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_routes_by_label_lead_where_they_say(name: str, labels: Mapping[str, str], receivers: list[str], tmp_path: Path) -> None:
    config = tmp_path / "alertmanager.yml"
    config.write_text(yaml.safe_dump(with_snippet(SHIPPED / "routes" / f"{name}.yml")))

    assert receiver_of(config, labels) == receivers


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in alerts()}))
def test_what_is_told_of_an_alert_is_what_its_runbook_says(name: str, tmp_path: Path) -> None:
    runbook = (SHIPPED / "runbooks" / f"{name}.md").read_text()
    causes = " ".join(runbook.split("## Causes\n")[1].split("\n\n")[0].split())
    remedies = [line for line in runbook.split("## Mitigation\n")[1].split("\n\n")[0].splitlines() if line.startswith("* ")]

    lines = rendered("trainer.text", [HANG | {"labels": {"alertname": name, "severity": "warning"}}], tmp_path).splitlines()

    assert f"Likely causes: {causes}" in lines
    assert [line for line in lines if line.startswith("* ")] == remedies[:3]
    assert remedies


def test_the_templates_are_built_from_the_runbooks() -> None:
    checked = subprocess.run([sys.executable, SHIPPED / "build.py", "--check"], capture_output=True, text=True, check=False)

    assert checked.returncode == 0, checked.stdout + checked.stderr


def rendered(name: str, told: Sequence[Mapping[str, Any]], directory: Path) -> str:
    """The text of a template over these alerts of one run."""
    data = {
        "alerts": [{"status": "firing", "startsAt": BEGAN.isoformat().replace("+00:00", "Z"), **alert} for alert in told],
        "commonLabels": {"run": "pt-70b"},
    }
    path = directory / "data.json"
    path.write_text(json.dumps(data))
    glob = f"--template.glob={SHIPPED / 'templates' / '*.tmpl'}"
    return amtool("template", "render", glob, f"--template.data={path}", f'--template.text={{{{ template "{name}" . }}}}')


def test_the_text_begins_with_the_sentence_to_read_aloud_and_leads_to_runbook_and_dashboard(tmp_path: Path) -> None:
    runbook = (SHIPPED / "runbooks" / "TrainingNcclStall.md").read_text()

    lines = rendered("trainer.text", [HANG], tmp_path).splitlines()

    assert lines[:7] == [
        TITLE,
        "",
        f"TrainingNcclStall (critical): {HANG['annotations']['description']}",
        "Run: pt-70b/a b (cluster a), team base, owner ada",
        "Since: 2026-01-02 03:04:05 UTC",
        "Suspect: node-2, GPU 1: process gone",
        "First: Take the stacks first.",
    ]
    assert lines[7].removeprefix("Likely causes: ") in runbook
    assert lines[-2:] == [f"Runbook: {RUNBOOK}", f"Dashboard: {DASHBOARD}"]


def test_the_title_is_one_sentence_and_the_end_of_an_incident_is_told_as_such(tmp_path: Path) -> None:
    over = HANG | {"status": "resolved", "endsAt": "2026-01-02T03:14:05Z"}

    assert rendered("trainer.title", [HANG], tmp_path) == TITLE
    assert rendered("trainer.title", [HANG, HANG], tmp_path) == f"{TITLE} 2 alerts in all."
    assert rendered("trainer.title", [over], tmp_path) == "Over: The training hangs in a collective operation, run pt-70b."
    assert rendered("trainer.text", [HANG, over], tmp_path).splitlines()[-1] == "Over since 2026-01-02 03:14:05 UTC: TrainingNcclStall"


@pytest.mark.parametrize(
    ("labels", "uid", "variables"),
    [
        ({"run": "r 1", "instance": "n", "cluster": "a"}, "trainer-run", {"var-run": ["r 1"], "var-cluster": ["a"]}),
        ({"alertname": "GpuLost", "instance": "n"}, "trainer-node", {"var-node": ["n"]}),
        ({"alertname": "TrainerExporterDown", "instance": "n"}, "trainer-exporter", {"var-node": ["n"]}),
        ({"alertname": "TrainerExporterDown"}, "trainer-exporter", {}),
        ({"alertname": "Foreign"}, "trainer-oncall", {}),
    ],
    ids=["run", "node", "exporter", "all_exporters", "anything"],
)
def test_the_link_leads_to_a_dashboard_that_is_there_with_variables_that_it_has(
    labels: Mapping[str, str], uid: str, variables: Mapping[str, list[str]], tmp_path: Path
) -> None:
    boards = {
        board["uid"]: board
        for board in map(json.loads, (path.read_text() for path in (stack.REPOSITORY / "grafana/dashboards").glob("*.json")))
    }

    link = urlsplit(rendered("trainer.link", [{"labels": labels}], tmp_path))

    asked = parse_qs(link.query)
    assert link.path == f"/d/{uid}"
    assert {name: value for name, value in asked.items() if name.startswith("var-")} == dict(variables)
    assert {name.removeprefix("var-") for name in variables} <= {one["name"] for one in boards[uid]["templating"]["list"]}
    assert asked["to"] == ["now"]


def seen_in_scenes() -> list[Mapping[str, str]]:
    """The labels of every alert that fires in a scene of its rule: what can stand in a notification."""
    scenes = (yaml.safe_load(path.read_text())["tests"] for path in sorted(Path(__file__).parent.glob("*_test.yml")))
    judged = (test for scene in scenes for told in scene for test in told.get("alert_rule_test", ()))
    fired = ({"alertname": test["alertname"], **alert["exp_labels"]} for test in judged for alert in test["exp_alerts"])
    return [dict(labels) for labels in sorted({tuple(sorted(labels.items())) for labels in fired})]


def test_every_alert_in_every_scene_links_to_a_dashboard_whose_variables_take_its_run_or_node_and_its_time(tmp_path: Path) -> None:
    told = seen_in_scenes()
    boards = [json.loads(path.read_text()) for path in (stack.REPOSITORY / "grafana/dashboards").glob("*.json")]
    known = {board["uid"]: {one["name"] for one in board["templating"]["list"]} for board in boards}

    text = rendered("trainer.text", [{"labels": labels} for labels in told], tmp_path)

    links = [urlsplit(found) for found in re.findall(r"^Dashboard: (\S+)$", text, re.MULTILINE)]
    assert {labels["alertname"] for labels in told} == {rule["alert"] for rule in alerts()}
    assert len(links) == len(told)
    for labels, link in zip(told, links, strict=True):
        asked = {name: value for name, (value,) in parse_qs(link.query).items()}
        filled = {name.removeprefix("var-"): value for name, value in asked.items() if name.startswith("var-")}
        uid = link.path.removeprefix("/d/")
        assert filled.keys() <= known[uid], f"{link.geturl()} of {labels}"
        subject = {"run": labels.get("run")} if "run" in labels else {"node": labels["instance"]} if "instance" in labels else {}
        assert subject.items() <= filled.items(), f"{link.geturl()} of {labels}"
        assert asked["from"] == str(int((BEGAN.timestamp() - 3600) * 1000)), f"{link.geturl()} of {labels}"


@contextlib.contextmanager
def mailbox() -> Iterator[tuple[str, list[str]]]:
    """An SMTP server on a free port, and the letters that came: just enough of the protocol."""
    letters: list[str] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().strip().upper():
                if line == b"DATA":
                    self.wfile.write(b"354 go on\r\n")
                    text = b"".join(iter(self.rfile.readline, b".\r\n"))
                    letters.append(text.decode())
                self.wfile.write(b"221 bye\r\n" if line == b"QUIT" else b"250 fine\r\n")
                if line == b"QUIT":
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}", letters
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def on_this_machine(name: str, directory: Path, *, inbox: str, smarthost: str) -> dict[str, Any]:
    """The first receiver of a snippet as it is, but for where its service is found."""
    (receiver, *_) = snippet(SHIPPED / "receivers" / f"{name}.yml")["receivers"]
    secret = directory / name
    secret.write_text(f"{inbox}/{name}" if name == "slack" else "the-key")
    for kind, fields in {
        "pagerduty_configs": {"url": f"{inbox}/{name}", "routing_key_file": str(secret)},
        "slack_configs": {"api_url_file": str(secret)},
        "email_configs": {"smarthost": smarthost, "require_tls": False, "auth_password_file": str(secret)},
        "webhook_configs": {"url": f"{inbox}/{name}", "http_config": {"authorization": {"credentials_file": str(secret)}}},
    }.items():
        for one in receiver.get(kind, ()):
            one.update(fields)
    return dict(receiver)


def test_each_service_is_told_the_same_incident(tmp_path: Path) -> None:
    """PagerDuty, Slack, e-mail and a webhook at once, from one running Alertmanager."""
    with stack.receiver() as inbox, mailbox() as (smarthost, letters):
        config = yaml.safe_load(stack.alertmanager_config(inbox.url))
        names = ("pagerduty", "slack", "email", "webhook")
        receivers = [on_this_machine(name, tmp_path, inbox=inbox.url, smarthost=smarthost) for name in names]
        config["receivers"] += receivers
        config["route"] |= {"group_by": ["cluster", "run"], "group_wait": "0s"}
        config["route"]["routes"] = [{"receiver": one["name"], "continue": True} for one in receivers]
        with stack.alertmanager(tmp_path / "alertmanager", yaml.safe_dump(config)) as running:
            ends = datetime.now(timezone.utc) + timedelta(minutes=10)
            running.post([HANG | {"startsAt": BEGAN.isoformat(), "endsAt": ends.isoformat()}])

            stack.eventually(
                lambda: letters and all(inbox.at(f"/{name}") for name in names if name != "email"), within_s=60, what="all four"
            )

    text = rendered("trainer.text", [HANG], tmp_path).strip()
    pagerduty, slack, webhook = (inbox.at(f"/{name}")[0].body for name in ("pagerduty", "slack", "webhook"))
    assert pagerduty["routing_key"] == "the-key"
    assert pagerduty["payload"]["summary"] == TITLE
    assert pagerduty["payload"]["severity"] == "critical"
    assert pagerduty["payload"]["custom_details"]["text"].strip() == text
    assert pagerduty["client_url"] == DASHBOARD
    (attachment,) = slack["attachments"]
    assert (attachment["title"], attachment["title_link"], attachment["text"].strip()) == (TITLE, DASHBOARD, text)
    letter = message_from_string(letters[0], policy=policy.default)
    assert letter["Subject"] == TITLE
    assert letter.get_body().get_content().replace("\r\n", "\n").strip() == text
    assert webhook["alerts"][0]["annotations"] == HANG["annotations"]
    assert webhook["groupLabels"] == {"cluster": "a", "run": "pt-70b/a b"}


def test_in_a_maintenance_window_nobody_is_told_but_the_watchdogs_receiver(tmp_path: Path) -> None:
    with stack.receiver() as inbox:
        config = yaml.safe_load(stack.alertmanager_config(inbox.url, group_wait="500ms", group_interval="1s"))
        (window,) = config["time_intervals"]
        window["time_intervals"] = [{"times": [{"start_time": "00:00", "end_time": "24:00"}]}]
        with stack.alertmanager(tmp_path, yaml.safe_dump(config)) as running:
            now = datetime.now(timezone.utc)
            times = {"startsAt": now.isoformat(), "endsAt": (now + timedelta(minutes=10)).isoformat(), "annotations": {}}
            told = [
                CRITICAL,
                WARNING,
                {"alertname": "TrainerExporterDown", "severity": "critical", "instance": "n"},
                CRITICAL | {"run": ""},
            ]
            running.post([{"labels": labels, **times} for labels in told])
            # Two sentinels, the second posted when the first has arrived: by then a whole group_wait has passed for what came before.
            for cluster in ("first", "second"):
                running.post([{"labels": {"alertname": "Watchdog", "severity": "none", "cluster": cluster}, **times}])
                stack.eventually(lambda name=cluster: told_of(inbox, name), within_s=60, what=f"the watchdog of {cluster}")

    assert inbox.at("/page") == inbox.at("/ticket") == []


def told_of(inbox: stack.Receiver, cluster: str) -> list[stack.Notification]:
    """What the watchdog's receiver was told of a cluster."""
    return [one for one in inbox.at("/watchdog") if one.body["groupLabels"].get("cluster") == cluster]
