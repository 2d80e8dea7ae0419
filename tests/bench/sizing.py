"""What a node of eight cards and a run costs Prometheus: ``python tests/bench/sizing.py [SECONDS]`` prints series and bytes a sample.

A second stands for a scrape of 15 s: the daemon looks at the cards, a step is logged and everything is scraped once a second, with figures
that move as measured ones do. The real Prometheus, with the shipped rules, writes a block at the end, whose size is told. 600 s are 2.5 h.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "gpu")]

import fake  # noqa: E402 - found by the line above
from daemon import Daemon  # noqa: E402 - idem
from scenario import FOLDER, Scenario  # noqa: E402 - idem
from stack import Prometheus, eventually, prometheus, prometheus_config  # noqa: E402 - idem

GPUS = 8
TRAINER = """
import random, time
for step in range(1, 999999):
    loss, norm = 1.5 + 2 / step ** 0.3 + random.gauss(0, 0.02), random.lognormvariate(-0.5, 0.2)
    record = {'loss': round(loss, 4), 'grad_norm': norm, 'learning_rate': 1e-05 * (1 - step / 1e6), 'epoch': round(step / 5000, 2)}
    print(record, flush=True)
    time.sleep(1)
"""


def move(driver: fake.FakeDriver, second: int) -> None:
    """Readings of cards in training, a second on."""
    for gpu in range(GPUS):
        driver.set(
            gpu,
            util=random.randint(93, 100),
            memutil=random.randint(35, 60),
            power_mw=random.randint(560_000, 700_000),
            energy_mj=10**10 + second * 9_500_000 + gpu * 1000 + random.randint(0, 9999),
            temperature=random.randint(61, 66),
            memory_temperature=random.randint(78, 84),
            sm_mhz=random.choice((1980, 1965, 1950, 1905)),
            used=70 << 30,
        )


def count(server: Prometheus, query: str) -> int:
    result = server.query(query)
    return int(float(result[0]["value"][1])) if result else 0


def block(base: str, data: Path) -> dict[str, Any]:
    """What the newest snapshot holds, and its bytes on the disk."""
    request = urllib.request.Request(f"{base}/api/v1/admin/tsdb/snapshot", method="POST")
    with urllib.request.urlopen(request, timeout=60) as answer:
        folder = data / "snapshots" / json.load(answer)["data"]["name"]
    metas = [json.loads(path.read_text())["stats"] for path in folder.glob("*/meta.json")]
    chunks = sum(path.stat().st_size for path in folder.glob("*/chunks/*"))
    index = sum(path.stat().st_size for path in folder.glob("*/index"))
    return {"samples": sum(meta["numSamples"] for meta in metas), "bytes of chunks": chunks, "bytes of index": index, "blocks": len(metas)}


def main(seconds: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        driver = fake.FakeDriver(fake.build(folder), folder, lines={**Scenario(FOLDER / "h100.nvml").lines, "count": str(GPUS)})
        log = folder / "llama-sft" / "train.log"
        log.parent.mkdir()
        config = folder / "config.yml"
        config.write_text(f"sources: [{{path: {log}}}]\ngpu: {{interval: 1s}}\n")
        with log.open("w") as output:
            trainer = subprocess.Popen([sys.executable, "-c", TRAINER], stdout=output)
        driver.set(processes=f"{trainer.pid}:75000000000")
        try:
            with Daemon(f"--config.file={config}", log=folder / "daemon.log", env=driver.env()) as daemon:
                measure(driver, daemon, folder, seconds)
        finally:
            trainer.kill()
            driver.heal()


def measure(driver: fake.FakeDriver, daemon: Daemon, folder: Path, seconds: int) -> None:
    made = prometheus_config(
        [f"127.0.0.1:{daemon.port}"], alertmanager_url="http://127.0.0.1:9", scrape_interval="1s", evaluation_interval="1s"
    )
    with prometheus(folder / "prometheus", made, "--web.enable-admin-api") as server:
        eventually(lambda: count(server, "up"), within_s=60, what="a scrape")
        for second in range(seconds):
            move(driver, second)
            time.sleep(1)
        told = {
            # The most within a minute: on a busy machine a scrape of a second can come too late.
            "scraped": count(server, "max_over_time(scrape_samples_post_metric_relabeling[1m])"),
            "of GPUs": count(server, 'max_over_time(count({__name__=~"gpu_.+"})[1m:1s])'),
            "of runs": count(server, 'max_over_time(count({__name__=~"trainer_.+",__name__!~"trainer_exporter_.+"})[1m:1s])'),
            "with what the rules record": count(server, 'max_over_time(count({__name__=~".+"})[1m:1s])'),
            **block(server.url, folder / "prometheus" / "data"),
        }
    told["bytes a sample"] = round(told["bytes of chunks"] / told["samples"], 2)
    sys.stdout.write(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 600)
