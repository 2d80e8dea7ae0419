"""The shipped Alertmanager configuration, on a running Alertmanager: what pages, how often, and what stays silent."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack

CONFIG = stack.SHIPPED_ALERTMANAGER
TEMPLATES = CONFIG.parent / "templates" / "*.tmpl"
# Kept until the test ends them; Prometheus does the same with each evaluation.
LASTS_S = 600

ROUTES = {
    "critical_of_a_run": ({"alertname": "TrainingStalled", "severity": "critical", "run": "r"}, "page-webhook"),
    "critical_of_a_run_that_may_page": (
        {"alertname": "TrainingStalled", "severity": "critical", "run": "r", "page": "yes"},
        "page-webhook",
    ),
    "critical_of_a_run_that_must_not_page": (
        {"alertname": "TrainingStalled", "severity": "critical", "run": "r", "page": "no"},
        "ticket-webhook",
    ),
    "critical_of_a_node": ({"alertname": "GpuLost", "severity": "critical", "instance": "n"}, "page-webhook"),
    "critical_exporter": ({"alertname": "TrainerExporterDown", "severity": "critical", "instance": "n"}, "page-webhook"),
    "warning_of_a_run": ({"alertname": "TrainingLossSpike", "severity": "warning", "run": "r"}, "ticket-webhook"),
    "warning_of_a_node": ({"alertname": "GpuLost", "severity": "warning", "instance": "n"}, "ticket-webhook"),
    "info": ({"alertname": "GpuMemoryHeadroomLow", "severity": "info", "run": "r"}, "nobody"),
    "no_severity": ({"alertname": "Foreign"}, "nobody"),
    "watchdog": ({"alertname": "Watchdog", "severity": "none"}, "watchdog-webhook"),
}


def amtool(*arguments: str) -> str:
    """What amtool prints; it has found nothing to complain of."""
    done = subprocess.run(["amtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def alert(name: str, severity: str = "critical", **labels: str) -> dict[str, Any]:
    """An alert as Prometheus would send it, firing."""
    now = datetime.now(timezone.utc)
    return {
        "labels": {"alertname": name, "severity": severity, **labels},
        "annotations": {"summary": f"{name} happened", "description": f"Run {labels.get('run', '?')} is sick. More follows."},
        "startsAt": now.isoformat(),
        "endsAt": (now + timedelta(seconds=LASTS_S)).isoformat(),
    }


def ended(firing: Mapping[str, Any]) -> dict[str, Any]:
    """The same alert, over."""
    return {**firing, "endsAt": datetime.now(timezone.utc).isoformat()}


@pytest.fixture(scope="module")
def _programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[stack.Alertmanager, stack.Receiver]]:
    with stack.receiver() as inbox:
        config = stack.alertmanager_config(inbox.url, group_wait="500ms", group_interval="1s")
        with stack.alertmanager(tmp_path_factory.mktemp("alertmanager"), config) as running:
            yield running, inbox


@pytest.fixture
def pager(_programs: tuple[stack.Alertmanager, stack.Receiver]) -> stack.Alertmanager:
    """One Alertmanager for all tests of this module: each uses a cluster of its own."""
    return _programs[0]


@pytest.fixture
def inbox(_programs: tuple[stack.Alertmanager, stack.Receiver]) -> stack.Receiver:
    return _programs[1]


def of_cluster(notifications: list[stack.Notification], cluster: str) -> list[stack.Notification]:
    """Those that concern this cluster."""
    return [one for one in notifications if any(alert["labels"].get("cluster") == cluster for alert in one.body["alerts"])]


def settled(pager: stack.Alertmanager, inbox: stack.Receiver, cluster: str) -> list[stack.Notification]:
    """The pages of a cluster, once whatever was to come has come.

    Two sentinels, the second posted when the first has arrived: by then a whole group_wait has passed since all that was posted before.
    """
    for name in ("FirstSentinel", "SecondSentinel"):
        pager.post([alert(name, cluster=cluster, run=name)])
        stack.eventually(lambda name=name: _pages_of(inbox, cluster, name), within_s=15, what=name)
    return [page for page in of_cluster(inbox.pages(), cluster) if not is_sentinel(page)]


def _pages_of(inbox: stack.Receiver, cluster: str, name: str) -> list[stack.Notification]:
    return [page for page in of_cluster(inbox.pages(), cluster) if page.alertnames == [name]]


def is_sentinel(notification: stack.Notification) -> bool:
    """Whether a test only posted it to see that the rest has arrived."""
    return all(name.endswith("Sentinel") for name in notification.alertnames) and bool(notification.alertnames)


def test_amtool_finds_nothing_wrong() -> None:
    said = amtool("check-config", str(CONFIG))

    assert "SUCCESS" in said
    assert "1 templates" in said


@pytest.mark.parametrize(("labels", "receiver"), ROUTES.values(), ids=ROUTES)
def test_a_label_set_goes_to_one_receiver(labels: Mapping[str, str], receiver: str) -> None:
    said = amtool("config", "routes", "test", f"--config.file={CONFIG}", *(f"{name}={value}" for name, value in labels.items()))

    assert said.split() == [receiver]


def test_every_receiver_is_ready_to_be_chosen_and_holds_no_secret() -> None:
    config = yaml.safe_load(CONFIG.read_text())

    receivers = {receiver["name"]: receiver for receiver in config["receivers"]}

    assert receivers["page-pagerduty"]["pagerduty_configs"][0]["routing_key_file"].startswith("/")
    assert receivers["ticket-slack"]["slack_configs"][0]["api_url_file"].startswith("/")
    assert receivers["ticket-email"]["email_configs"][0]["auth_password_file"].startswith("/")
    assert not [key for key in ("routing_key:", "api_url:", "auth_password:") if key in CONFIG.read_text()]


def test_every_inhibition_wants_its_labels_on_both_sides() -> None:
    rules = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]

    for rule in rules:
        for label in set(rule["equal"]) - {"cluster", "alertname"}:
            assert f'{label}=~".+"' in rule["source_matchers"], rule
            assert f'{label}=~".+"' in rule["target_matchers"], rule


def test_one_incident_over_five_nodes_is_one_page(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    lost = [alert("GpuLost", cluster="five", run="pt-70b", instance=f"node-{n}", uuid=f"GPU-{n}") for n in range(5)]

    pager.post([*lost, alert("TrainingStalled", cluster="five", run="pt-70b"), alert("TrainingNcclStall", cluster="five", run="pt-70b")])

    (page,) = settled(pager, inbox, "five")
    assert page.alertnames == ["GpuLost"] * 5
    assert page.body["groupLabels"] == {"cluster": "five", "run": "pt-70b"}


def test_two_runs_are_two_pages_and_two_nodes_without_a_run_too(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post(
        [
            alert("TrainingStalled", cluster="two", run="a"),
            alert("TrainingStalled", cluster="two", run="b"),
            alert("Foreign", cluster="two", instance="node-1"),
            alert("Foreign", cluster="two", instance="node-2"),
        ]
    )

    groups = [page.body["groupLabels"] for page in settled(pager, inbox, "two")]

    assert sorted(map(str, groups)) == sorted(
        map(
            str,
            [
                {"cluster": "two", "run": "a"},
                {"cluster": "two", "run": "b"},
                {"cluster": "two", "instance": "node-1"},
                {"cluster": "two", "instance": "node-2"},
            ],
        )
    )


def test_a_hundred_silent_exporters_are_one_page(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post([alert("TrainerExporterDown", cluster="net", instance=f"node-{n}") for n in range(100)])

    (page,) = settled(pager, inbox, "net")

    assert len(page.body["alerts"]) == 100


@pytest.mark.parametrize(
    ("cause", "symptoms"),
    [
        ("GpuLost", ["TrainingNcclStall", "TrainingStalled"]),
        ("GpuXidError", ["TrainingNcclStall", "TrainingStalled"]),
        ("GpuEccUncorrected", ["TrainingStalled", "TrainingNcclStall"]),
        ("TrainingNcclStall", ["TrainingStalled"]),
        ("TrainingCrashed", ["TrainingStalled", "TrainingNcclStall"]),
    ],
)
def test_a_cause_silences_its_symptoms_but_not_those_of_another_run(
    cause: str, symptoms: list[str], pager: stack.Alertmanager, inbox: stack.Receiver
) -> None:
    cluster = f"cause-{cause}"
    pager.post([alert(cause, cluster=cluster, run="sick"), *(alert(name, cluster=cluster, run="sick") for name in symptoms)])
    pager.post([alert(symptoms[0], cluster=cluster, run="other")])

    pages = settled(pager, inbox, cluster)

    assert sorted(page.alertnames for page in pages) == sorted([[cause], [symptoms[0]]])


@pytest.mark.parametrize(
    ("cause", "symptom"),
    [
        ("GpuLost", "GpuXidError"),
        ("GpuLost", "GpuUnreadable"),
        ("GpuXidError", "GpuEccUncorrected"),
        ("GpuEccUncorrected", "GpuRowRemapPending"),
        ("GpuNvlinkDown", "GpuNvlinkErrors"),
        ("GpuTemperatureHigh", "GpuThrottled"),
        ("GpuThrottled", "GpuStraggler"),
        ("GpuMemoryLeak", "GpuMemoryHeadroomLow"),
        ("GpuStraggler", "TrainingThroughputLow"),
        ("TrainingDataStarved", "TrainingThroughputLow"),
    ],
)
def test_the_ticket_of_a_cause_silences_that_of_its_symptom_on_the_same_card_alone(
    cause: str, symptom: str, pager: stack.Alertmanager, inbox: stack.Receiver
) -> None:
    cluster = f"ticket-{cause}-{symptom}"
    pager.post(
        [alert(cause, "warning", cluster=cluster, run="r", uuid="GPU-1"), alert(symptom, "warning", cluster=cluster, run="r", uuid="GPU-1")]
    )
    pager.post([alert(symptom, "warning", cluster=cluster, run="other", uuid="GPU-2")])

    stack.eventually(lambda: len(of_cluster(inbox.at("/ticket"), cluster)) >= 2, within_s=15, what="two tickets")
    settled(pager, inbox, cluster)

    told = {(one.body["groupLabels"]["run"], name) for one in of_cluster(inbox.at("/ticket"), cluster) for name in one.alertnames}
    assert told == {("r", cause), ("other", symptom)}


@pytest.mark.parametrize("named", [{"cluster": "x"}, {}], ids=["with_cluster", "without_cluster"])
def test_alerts_without_a_run_silence_no_run(named: Mapping[str, str], pager: stack.Alertmanager) -> None:
    run = f"unrelated-{len(named)}"
    pager.post([alert("GpuLost", instance="node-1", **named), alert("TrainingStalled", run=run, **named)])

    def stalled() -> list[dict[str, Any]]:
        return [one for one in pager.alerts() if one["labels"].get("run") == run]

    (found,) = stack.eventually(
        lambda: [one for one in stalled() if one["status"]["state"] != "unprocessed"], within_s=10, what="processed"
    )
    assert found["status"]["inhibitedBy"] == []


def test_a_critical_alert_silences_the_warnings_of_its_run(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post([alert("TrainingLossNotFinite", cluster="twin", run="nan")])
    pager.post(
        [
            alert("TrainingLossNotFinite", "warning", cluster="twin", run="nan"),
            alert("TrainingLossSpike", "warning", cluster="twin", run="nan"),
        ]
    )
    pager.post([alert("TrainingLossSpike", "warning", cluster="twin", run="other")])

    stack.eventually(lambda: of_cluster(inbox.at("/ticket"), "twin"), within_s=15, what="the ticket of the other run")

    assert [page.alertnames for page in settled(pager, inbox, "twin")] == [["TrainingLossNotFinite"]]
    assert {ticket.body["groupLabels"]["run"] for ticket in of_cluster(inbox.at("/ticket"), "twin")} == {"other"}


def test_neither_an_update_nor_the_end_of_an_incident_is_a_second_page(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    first = alert("TrainingLossNotFinite", cluster="update", run="r")
    second = alert("GpuLost", cluster="update", run="r", instance="node-1")
    pager.post([first])
    stack.eventually(lambda: of_cluster(inbox.pages(), "update"), within_s=15, what="the page")

    pager.post([first, second])
    stack.eventually(lambda: len(of_cluster(inbox.at("/page"), "update")) >= 2, within_s=15, what="the update")
    pager.post([ended(first), ended(second)])
    stack.eventually(
        lambda: [one for one in of_cluster(inbox.at("/page"), "update") if one.body["status"] == "resolved"], within_s=15, what="the end"
    )

    assert len(settled(pager, inbox, "update")) == 1
    assert len({one.group for one in of_cluster(inbox.at("/page"), "update") if not is_sentinel(one)}) == 1


def test_warnings_and_runs_that_must_not_page_go_to_the_ticket_only(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post(
        [alert("TrainingLossSpike", "warning", cluster="quiet", run="a"), alert("TrainingStalled", cluster="quiet", run="b", page="no")]
    )
    pager.post([alert("GpuMemoryHeadroomLow", "info", cluster="quiet", run="c")])

    stack.eventually(lambda: len(of_cluster(inbox.at("/ticket"), "quiet")) == 2, within_s=15, what="two tickets")

    assert settled(pager, inbox, "quiet") == []


def test_the_watchdog_goes_its_own_way(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post([alert("Watchdog", "none", cluster="watchdog")])

    stack.eventually(lambda: of_cluster(inbox.at("/watchdog"), "watchdog"), within_s=15, what="the watchdog")

    assert settled(pager, inbox, "watchdog") == []


@pytest.fixture
def incident(tmp_path: Path) -> Path:
    """What Alertmanager hands to a template: one alert that fires, one that is over."""
    data = {
        "receiver": "page-pagerduty",
        "status": "firing",
        "alerts": [
            {
                "status": "firing",
                "labels": {"alertname": "TrainingNcclStall", "severity": "critical", "run": "pt-70b", "cluster": "a", "team": "base"},
                "annotations": {
                    "summary": "The training hangs in a collective operation",
                    "description": "Run pt-70b hangs in a collective: no step for 1m 32s. Suspect: GPU 1 of node node-2.",
                    "suspect": "node-2, GPU 1",
                    "remedy": "Take the stacks first.",
                    "runbook_url": "https://example.org/TrainingNcclStall.md",
                },
                "startsAt": "2026-01-02T03:04:05Z",
            },
            {
                "status": "resolved",
                "labels": {"alertname": "TrainingLossSpike", "run": "pt-70b"},
                "annotations": {"summary": "The loss has jumped"},
                "endsAt": "2026-01-02T03:14:05Z",
            },
        ],
        "commonLabels": {"run": "pt-70b"},
    }
    path = tmp_path / "incident.json"
    path.write_text(json.dumps(data))
    return path


def rendered(name: str, data: Path) -> str:
    """The text of a template over this data."""
    return amtool(
        "template", "render", f"--template.glob={TEMPLATES}", f"--template.data={data}", f'--template.text={{{{ template "{name}" . }}}}'
    )


def test_the_title_is_the_sentence_to_read_aloud(incident: Path) -> None:
    assert rendered("trainer.title", incident) == "Run pt-70b hangs in a collective: no step for 1m 32s."


def test_the_text_tells_run_time_suspect_remedy_and_runbook(incident: Path) -> None:
    lines = rendered("trainer.text", incident).splitlines()

    assert lines == [
        "Run pt-70b hangs in a collective: no step for 1m 32s.",
        "",
        "TrainingNcclStall (critical): Run pt-70b hangs in a collective: no step for 1m 32s. Suspect: GPU 1 of node node-2.",
        "Run: pt-70b (cluster a), team base",
        "Since: 2026-01-02 03:04:05 UTC",
        "Suspect: node-2, GPU 1",
        "First: Take the stacks first.",
        "Runbook: https://example.org/TrainingNcclStall.md",
        "",
        "Over since 2026-01-02 03:14:05 UTC: TrainingLossSpike",
    ]


def test_the_end_of_an_incident_is_told_as_such(incident: Path, tmp_path: Path) -> None:
    data = json.loads(incident.read_text())
    data["status"], data["alerts"] = "resolved", data["alerts"][1:]
    over = tmp_path / "over.json"
    over.write_text(json.dumps(data))

    assert rendered("trainer.title", over) == "Over: The loss has jumped, run pt-70b."
