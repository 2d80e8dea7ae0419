"""The shipped Alertmanager configuration, on a running Alertmanager: what pages, how often, and what stays silent."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
import yaml

import stack
from rulebook import alerts

CONFIG = stack.SHIPPED_ALERTMANAGER
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


def test_every_inhibition_wants_its_labels_on_both_sides() -> None:
    rules = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]

    for rule in rules:
        for label in set(rule["equal"]) - {"cluster", "alertname"}:
            assert f'{label}=~".+"' in rule["source_matchers"], rule
            assert f'{label}=~".+"' in rule["target_matchers"], rule


def test_every_inhibition_is_about_alerts_that_are_there() -> None:
    names = {rule["alert"] for rule in alerts()}
    rules = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
    patterns = [found for rule in rules for found in re.findall(r'alertname=~?"([^"]+)"', str(rule))]

    words = {
        word
        for pattern in patterns
        for word in re.sub(r"(\w+)\(([^)]+)\)", lambda m: "|".join(map(m[1].__add__, m[2].split("|"))), pattern).split("|")
    }

    assert len(words) > 30
    assert {word for word in words if not any(re.fullmatch(word, name) for name in names)} == set()


def test_no_ticket_silences_a_page_and_no_two_alerts_silence_each_other() -> None:
    """Alertmanager would tell neither, since what pages silences the tickets of its run."""
    inhibitions = yaml.safe_load(CONFIG.read_text())["inhibit_rules"]
    twins = [(rule["alert"], rule["labels"]["severity"]) for rule in alerts()]
    rank = ["none", "info", "warning", "critical"].index

    silenced = {(cause, symptom) for rule in inhibitions for cause in twins for symptom in twins if _fit(rule, cause, symptom)}

    assert {(cause, symptom) for cause, symptom in silenced if rank(cause[1]) < rank(symptom[1])} == set()
    assert {pair for pair in silenced if pair[::-1] in silenced and pair[0] != pair[1]} == set()


def _fit(rule: Mapping[str, Any], cause: tuple[str, str], symptom: tuple[str, str]) -> bool:
    """Whether one silences the other, going by names and severities; all else about them is taken to be equal."""
    if "alertname" in rule["equal"] and cause[0] != symptom[0]:
        return False
    return _matches(rule["source_matchers"], cause) and _matches(rule["target_matchers"], symptom)


def _matches(matchers: Sequence[str], twin: tuple[str, str]) -> bool:
    for label, value in zip(("alertname", "severity"), twin, strict=True):
        for pattern in re.findall(rf'^{label}=~?"(.+)"$', "\n".join(matchers), re.MULTILINE):
            if not re.fullmatch(pattern, value):
                return False
    return True


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
        ("TrainingNcclStall", ["TrainingNotStarted"]),
        ("TrainingCrashed", ["TrainingStalled", "TrainingNcclStall", "TrainingNotStarted"]),
        ("TrainingRestartLoop", ["TrainingCrashed", "TrainingStalled", "TrainingNotStarted"]),
    ],
)
def test_a_cause_silences_its_symptoms_but_not_those_of_another_run(
    cause: str, symptoms: list[str], pager: stack.Alertmanager, inbox: stack.Receiver
) -> None:
    cluster = f"cause-{cause}-{symptoms[0]}"
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
        ("TrainingLossNotFinite", "TrainingLossSpike"),
        ("TrainingLossSpike", "TrainingGradientExploding"),
        ("TrainingLossScaleCollapsing", "TrainingStepsSkipped"),
        ("TrainingLossScaleAtMinimum", "TrainingLossScaleCollapsing"),
        ("TrainingLossAtChance", "TrainingGradientConstant"),
        ("TrainingLossConstant", "TrainingLossPlateau"),
        ("TrainingGradientVanishing", "TrainingLossPlateau"),
        ("TrainingLearningRateFallsEarly", "TrainingLossPlateau"),
        ("TrainingDiskFull", "TrainingCheckpointFailed"),
        ("TrainingCheckpointFailed", "TrainingCheckpointOverdue"),
        ("TrainingRankFailed", "TrainingNcclError"),
        ("GpuXidError", "TrainingRankFailed"),
        ("TrainingCrashed", "TrainingTelemetryGone"),
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


def test_what_only_informs_silences_no_ticket(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post(
        [
            alert("TrainingGradientVanishing", "info", cluster="informs", run="r"),
            alert("TrainingLossConstant", "info", cluster="informs", run="r"),
        ]
    )
    pager.post([alert("TrainingLossPlateau", "warning", cluster="informs", run="r")])

    (ticket,) = stack.eventually(lambda: of_cluster(inbox.at("/ticket"), "informs"), within_s=15, what="the ticket")

    assert ticket.alertnames == ["TrainingLossPlateau"]


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


def test_a_node_that_does_not_answer_is_one_ticket(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    gone = {"cluster": "node", "instance": "node-1"}
    pager.post([alert("TrainerExporterDown", "warning", **gone), alert("GpuUnreadable", "warning", **gone, uuid="GPU-1")])
    pager.post(
        [alert("TrainerExporterLagging", "warning", **gone), alert("TrainerExporterLagging", "warning", **gone | {"instance": "node-2"})]
    )

    stack.eventually(lambda: len(of_cluster(inbox.at("/ticket"), "node")) >= 2, within_s=60, what="two tickets")
    settled(pager, inbox, "node")

    told = {
        (one["labels"]["instance"], one["labels"]["alertname"])
        for ticket in of_cluster(inbox.at("/ticket"), "node")
        for one in ticket.body["alerts"]
    }
    assert told == {("node-1", "TrainerExporterDown"), ("node-2", "TrainerExporterLagging")}


def test_the_watchdog_goes_its_own_way(pager: stack.Alertmanager, inbox: stack.Receiver) -> None:
    pager.post([alert("Watchdog", "none", cluster="watchdog")])

    stack.eventually(lambda: of_cluster(inbox.at("/watchdog"), "watchdog"), within_s=15, what="the watchdog")

    assert settled(pager, inbox, "watchdog") == []
