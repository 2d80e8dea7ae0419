"""The receiver that acts on alerts, as a process: by Alertmanager itself, and by requests that it must not like."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml

import stack
from rulebook import alerts

SHIPPED = stack.REPOSITORY / "deploy" / "action"
TOKEN = "a-token-of-this-test-alone"
GROUP = '{}/{run=~".+"}:{run="sft"}'
Notification = dict[str, Any]


class Running:
    """A receiver of actions on a free port, its audit log, and the file to which its command writes."""

    def __init__(self, directory: Path) -> None:
        self.audit_log = directory / "audit.jsonl"
        self.done = directory / "done"
        self.port = stack.free_port()

    def audited(self) -> list[dict[str, Any]]:
        """The lines of the audit log so far."""
        return [json.loads(line) for line in self.audit_log.read_text().splitlines()] if self.audit_log.exists() else []

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.audited()]

    def runs(self) -> list[str]:
        """What the command was given, once for each time that it ran."""
        return self.done.read_text().splitlines() if self.done.exists() else []

    def post(self, body: bytes | Notification, *, path: str = "/alerts", **headers: str) -> int:
        """The status of the answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("POST", path, data, {"Authorization": f"Bearer {TOKEN}"} | headers)
        with contextlib.closing(connection):
            return connection.getresponse().status

    def await_events(self, *wanted: str) -> None:
        stack.eventually(lambda: self.events() == list(wanted), within_s=60, what=f"{wanted}; see {self.audit_log}")


Start = Callable[..., contextlib.AbstractContextManager[Running]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts the receiver with these commands and flags, until the block ends."""

    @contextlib.contextmanager
    def started(*flags: str, shell: str = 'echo "$1" >> "$0"', most_per_hour: int = 5, **entry: Any) -> Iterator[Running]:
        running = Running(tmp_path)
        command = ["/bin/sh", "-c", shell, str(running.done), "{run}"]
        (tmp_path / "token").write_text(TOKEN)
        action = {"alert": "TrainingLossPlateau", "labels": {"severity": "warning"}, "command": command, **entry}
        known = {"token_file": str(tmp_path / "token"), "actions": [action], "most_per_hour": most_per_hour}
        (tmp_path / "actions.json").write_text(json.dumps(known))
        files = ["--actions", str(tmp_path / "actions.json"), "--audit-log", str(running.audit_log)]
        program = [sys.executable, str(SHIPPED / "receiver.py"), *files, "--listen", f"127.0.0.1:{running.port}", *flags]
        with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            assert process.stderr.readline().startswith("listening on 127.0.0.1")
            try:
                yield running
            finally:
                process.terminate()

    return started


def told(status: str = "firing", *, group: str = GROUP, run: str = "sft", **labels: str) -> Notification:
    """A notification as Alertmanager sends it."""
    one = {"status": status, "labels": {"alertname": "TrainingLossPlateau", "severity": "warning", "run": run, **labels}, "annotations": {}}
    return {"groupKey": group, "status": status, "alerts": [one]}


def test_alertmanager_has_it_act_once_for_an_incident_and_again_for_the_next(start: Start, tmp_path: Path) -> None:
    (tmp_path / "credentials").write_text(TOKEN)
    with start("--act") as running, stack.receiver() as inbox:
        config = yaml.safe_load(stack.alertmanager_config(inbox.url))
        added = yaml.safe_load((SHIPPED / "alertmanager.yml").read_text())
        (webhook,) = added["receivers"][0]["webhook_configs"]
        webhook["url"] = f"http://127.0.0.1:{running.port}/alerts"
        webhook["http_config"]["authorization"]["credentials_file"] = str(tmp_path / "credentials")
        added["routes"][0] |= {"group_wait": "0s", "group_interval": "1s", "repeat_interval": "1s"}
        config["receivers"] += added["receivers"]
        config["route"]["routes"][:0] = added["routes"]
        config["route"]["routes"][-1] |= {"group_wait": "0s"}
        with stack.alertmanager(tmp_path / "alertmanager", yaml.safe_dump(config)) as alertmanager:
            labels = {"alertname": "TrainingLossPlateau", "severity": "warning", "run": "sft", "cluster": "a"}
            now = datetime.now(timezone.utc)

            def post(ends: datetime) -> None:
                alertmanager.post([{"labels": labels, "annotations": {}, "startsAt": now.isoformat(), "endsAt": ends.isoformat()}])

            post(now + timedelta(minutes=10))
            running.await_events("start", "end")
            repeats = lambda: running_deliveries(alertmanager.url)  # noqa: E731
            before = repeats()
            stack.eventually(lambda: repeats() >= before + 2, within_s=60, what="two repetitions of the same incident")
            assert running.runs() == ["sft"]
            post(datetime.now(timezone.utc))
            running.await_events("start", "end", "over")
            now = datetime.now(timezone.utc)
            post(now + timedelta(minutes=10))
            running.await_events("start", "end", "over", "start", "end")

    assert running.runs() == ["sft", "sft"]


def running_deliveries(url: str) -> float:
    """Notifications that Alertmanager has sent to webhooks so far."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics")
        page = connection.getresponse().read().decode()
    (line,) = [line for line in page.splitlines() if line.startswith('alertmanager_notifications_total{integration="webhook"}')]
    return float(line.rpartition(" ")[2])


def test_it_is_dry_unless_told_to_act(start: Start) -> None:
    with start() as running:
        assert running.post(told()) == 200
        running.await_events("dry_run")

    (entry,) = running.audited()
    assert entry["command"][-1] == "sft"
    assert (entry["alert"], entry["group"], entry["labels"]["run"]) == ("TrainingLossPlateau", GROUP, "sft")
    assert running.runs() == []


@pytest.mark.parametrize("other", [{"severity": "info"}, {"alertname": "TrainingStalled"}], ids=["severity", "name"])
def test_it_leaves_alone_what_is_not_on_its_list(other: Mapping[str, str], start: Start) -> None:
    with start("--act") as running:
        running.post(told(**other))
        running.post(told(group="another", run="sentinel"))
        running.await_events("start", "end")

    assert running.runs() == ["sentinel"]


def test_over_a_restart_it_remembers_what_it_has_done(start: Start) -> None:
    with start("--act") as running:
        running.post(told())
        running.await_events("start", "end")
    with running.audit_log.open("a") as log:
        log.write('{"time": 17, "event": "st')  # the machine went down

    running.audit_log.write_text(running.audit_log.read_text() + "\n")
    with start("--act") as again:
        again.post(told())
        again.post(told(group="another", run="sentinel"))
        stack.eventually(lambda: again.runs() == ["sft", "sentinel"], within_s=60, what="the sentinel alone")


@pytest.mark.parametrize("run", ["-rf", "../etc", "a b", "a;b", "$(id)", "a\nb", "", "x" * 201], ids=range(8))
def test_a_label_that_could_do_harm_starts_nothing(run: str, start: Start) -> None:
    with start("--act") as running:
        running.post(told(run=run))
        running.await_events("refused")

    assert "label run: found" in running.audited()[0]["reason"]
    assert running.runs() == []


def test_a_command_that_does_not_end_is_killed_with_all_that_it_started(start: Start) -> None:
    with start("--act", shell='sleep 600 & echo $! >> "$0"; echo waiting; wait', timeout_seconds=1.0) as running:
        running.post(told())
        running.await_events("start", "end")

    end = running.audited()[1]
    (child,) = running.runs()
    assert end["error"] == "not done within 1 s, killed"
    assert end["output"] == "waiting\n"
    stack.eventually(lambda: has_ended(int(child)), within_s=60, what=f"the end of process {child}")


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or waits for nothing but to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_never_starts_more_than_so_many_an_hour(start: Start) -> None:
    with start("--act", most_per_hour=2) as running:
        for number in range(3):
            running.post(told(group=f"group-{number}", run=f"run-{number}"))
        running.await_events("start", "end", "start", "end", "too_many")

    assert running.runs() == ["run-0", "run-1"]


def test_a_command_that_fails_or_is_not_there_is_written_down(start: Start) -> None:
    with start("--act", shell="echo no such job >&2; exit 3") as running:
        running.post(told())
        running.await_events("start", "end")
    with start("--act", command=["/no/such/program", "{run}"]) as missing:
        missing.post(told(group="another"))
        missing.await_events("start", "end", "start", "end")

    failed, absent = (entry for entry in missing.audited() if entry["event"] == "end")
    assert (failed["code"], failed["output"]) == (3, "no such job\n")
    assert "No such file" in absent["error"]


def test_it_takes_nothing_but_a_notification_with_the_token(start: Start) -> None:
    with start("--act") as running:
        answers = {
            "no token": running.post(told(), Authorization=""),
            "wrong token": running.post(told(), Authorization="Bearer other"),
            "not ASCII": running.post(told(), Authorization="Bearer \xe9"),
            "elsewhere": running.post(told(), path="/"),
            "length": running.post(b"", **{"Content-Length": "-1"}),
            "large": running.post(b"", **{"Content-Length": str(2 << 20)}),
            "no JSON": running.post(b"{"),
            "deep": running.post(b"[" * 100_000),
            "no group": running.post({"alerts": []}),
            "no labels": running.post({"groupKey": GROUP, "alerts": [{"status": "firing"}]}),
            "label of no text": running.post({"groupKey": GROUP, "alerts": [{"status": "firing", "labels": {"run": 1}}]}),
        }
        running.post(told())
        running.await_events("start", "end")

    refused = {"no token": 401, "wrong token": 401, "not ASCII": 401, "elsewhere": 404, "length": 411, "large": 413}
    assert answers == refused | dict.fromkeys(("no JSON", "deep", "no group", "no labels", "label of no text"), 400)


@pytest.mark.parametrize("address", ["0.0.0.0:19402", "10.0.0.1:19402", "localhost", "[::]:19402"])
def test_it_listens_on_this_machine_alone(address: str) -> None:
    asked = [sys.executable, SHIPPED / "receiver.py", "--actions", os.devnull, "--audit-log", os.devnull, "--listen", address]

    done = subprocess.run(asked, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "expected an address of this machine alone" in done.stderr


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"actions": []}, "token_file"),
        ({"actions": [], "more": 1}, "['more']"),
        ({"actions": [{"alert": "A", "command": "rm {run}"}]}, "there is no shell"),
        ({"actions": [{"alert": "A", "command": ["scancel"]}]}, "expected an absolute path"),
        ({"actions": [{"alert": "A", "command": ["/bin/{run}"]}]}, "without a place for a label"),
        ({"actions": [{"alert": "A", "command": ["/bin/true"], "shell": True}]}, "actions[0]: found ['shell']"),
    ],
    ids=["token", "key", "no_list", "relative", "program", "action_key"],
)
def test_a_file_of_actions_that_could_be_misread_is_refused(known: dict[str, Any], said: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN if said != "token_file" else "short")
    (tmp_path / "actions.json").write_text(json.dumps({"token_file": str(tmp_path / "token"), **known}))
    asked = [sys.executable, SHIPPED / "receiver.py", "--actions", tmp_path / "actions.json", "--audit-log", tmp_path / "log"]

    done = subprocess.run(asked, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert said in done.stderr


def test_the_example_allows_alerts_that_are_there_and_is_taken(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    example = json.loads((SHIPPED / "actions.example.json").read_text())
    (tmp_path / "actions.json").write_text(json.dumps(example | {"token_file": str(tmp_path / "token")}))
    check = "import sys, pathlib, receiver; print(len(receiver.load(pathlib.Path(sys.argv[1])).actions))"

    done = subprocess.run(
        [sys.executable, "-c", check, tmp_path / "actions.json"], capture_output=True, text=True, cwd=SHIPPED, check=False
    )

    assert done.stdout.strip() == str(len(example["actions"])), done.stderr
    assert {action["alert"] for action in example["actions"]} <= {rule["alert"] for rule in alerts()}
