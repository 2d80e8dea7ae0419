"""What is followed and by which name, on a host made by hand: configuration, processes and files meet here."""

from __future__ import annotations

from pathlib import Path

import pytest

from host import WRITE, Host
from trainer_exporter.config import Config, ProcessesConfig, SourceConfig
from trainer_exporter.feeds import Assignment
from trainer_exporter.health import Health
from trainer_exporter.model_gpu import GpuIdentity, GpuProcess, GpuReading, GpuSnapshot
from trainer_exporter.runs.store import Store, StoreSettings
from trainer_exporter.scout import Scout

DEFAULTS = Config()
NFS = "overlay / overlay rw 0 0\nserver:/export /shared nfs4 rw 0 0\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def followed(host: Host, config: Config = DEFAULTS, *, on_card: int = 40) -> dict[str, Assignment]:
    """Assignments by file name after a look at a host with one GPU."""
    reading = GpuReading(GpuIdentity("GPU-a", 0, "card"), success=True, collected_wall=0.0, processes=(GpuProcess(on_card, None),))
    scout = Scout(
        config,
        store=Store(StoreSettings(), clock=host.clock, health=Health()),
        gpus=lambda: GpuSnapshot(readings=(reading,)),
        clock=host.clock,
        health=Health(),
        proc_root=str(host.root / "proc"),
        host_root=str(host.root),
    )
    scout.look()
    return {Path(each.path).name: each for each in scout.assignments()}


@pytest.mark.parametrize(("rank", "files"), [("0", {"trainer_log.jsonl"}), ("8", set[str]())], ids=["first rank", "another node"])
def test_a_trainers_own_files_on_a_shared_file_system_are_published_by_the_node_of_the_first_rank(
    host: Host, rank: str, files: set[str]
) -> None:
    host.file("/overlay/shared/out/llama/trainer_log.jsonl")
    host.file("/overlay/shared/out/llama/console.log")
    host.process(40, command="python train.py --output_dir /shared/out/llama", environment={"RANK": rank})
    host.contain(40, "overlay")
    (host.root / "proc/40/mounts").write_text(NFS)

    assert followed(host).keys() == files


@pytest.mark.parametrize(
    ("processes", "files"),
    [
        (ProcessesConfig(), {"configured.log"}),
        (ProcessesConfig(discover=True), {"configured.log", "found.log"}),
        (ProcessesConfig(pids=(41,)), {"configured.log", "named.log"}),
    ],
    ids=["sources alone", "asked for", "named by PID"],
)
def test_with_sources_processes_are_looked_at_only_where_that_is_asked_for(host: Host, processes: ProcessesConfig, files: set[str]) -> None:
    host.process(40, {"1": (host.file("/data/found/found.log"), WRITE)})
    host.process(41, {"1": (host.file("/data/named/named.log"), WRITE)})
    source = SourceConfig(host.file("/data/heron/configured.log"), run="heron")

    assert followed(host, Config(sources=(source,), processes=processes)).keys() == files


def test_what_the_configuration_says_of_a_file_counts_where_a_process_leads_to_it_too(host: Host) -> None:
    log = host.file("/data/heron/console.log")
    host.process(40, {"1": (log, WRITE)}, environment={"TRAINER_RUN_NAME": "ibis"})
    source = SourceConfig(str(Path(log).parent), run="heron", labels={"team": "nlp"})

    (console,) = followed(host, Config(sources=(source,), processes=ProcessesConfig(discover=True))).values()

    assert (console.run, console.run_origin, console.labels) == ("heron", "from the configuration", {"team": "nlp"})
    assert console.why == f"found in {Path(log).parent}, named by the configuration"


@pytest.mark.parametrize(
    ("pattern", "explicit", "why"),
    [
        ("/data/heron/console.log", False, "named by the configuration"),
        ("/data/heron/console.log", True, "named on the command line"),
        ("/data/heron", True, "found in {root}/data/heron, named on the command line"),
        ("/data/*/console.log", False, "matches {root}/data/*/console.log, named by the configuration"),
    ],
    ids=["file", "PATH", "directory", "glob"],
)
def test_a_file_says_how_it_was_named(host: Host, pattern: str, explicit: bool, why: str) -> None:
    host.file("/data/heron/console.log")
    source = SourceConfig(f"{host.root}{pattern}", explicit=explicit)

    (console,) = followed(host, Config(sources=(source,))).values()

    assert console.why == why.format(root=host.root)
    assert (console.run, console.run_origin) == ("heron", "from its directory")


def test_a_log_is_named_by_the_process_that_led_to_it_rather_than_by_the_one_that_holds_it(host: Host) -> None:
    host.process(40, {"1": ("pipe:[9]", WRITE)}, environment={"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "heron", "RANK": "0"})
    host.process(
        41, {"0": ("pipe:[9]", 0), "3": (host.file("/data/logs/x.log"), WRITE)}, name="tee", environment={"TRAINER_RUN_NAME": "tee"}
    )

    (console,) = followed(host).values()

    assert (console.run, console.run_origin) == ("heron-77", "from Slurm job 77")
    assert console.why == "tee behind standard output of PID 40 on GPU 0"
    assert console.facts == {"job_id": "77", "user": "1007"}


def test_of_the_processes_that_hold_a_jobs_output_the_job_names_it_and_not_slurms_daemon(host: Host) -> None:
    log = host.file("/data/ada/slurm-77.out")
    host.process(30, {"2": (log, WRITE)}, name="slurmstepd", uid=0, cgroup="6:freezer:/slurm/uid_1007/job_77\n")
    job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NAME": "llama"}
    host.process(31, {"1": (log, WRITE)}, name="slurm_script", cgroup="6:freezer:/slurm/uid_1007/job_77/step_batch\n", environment=job)

    (output,) = followed(host, Config(sources=(SourceConfig(log),))).values()

    assert (output.run, output.run_origin) == ("llama-77", "from Slurm job 77")
