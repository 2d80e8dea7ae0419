"""Rows of the run's dashboard: do its GPUs work?"""

from __future__ import annotations

from typing import Any

from grafana_foundation_sdk.builders import common
from grafana_foundation_sdk.models import common as looks
from grafana_foundation_sdk.models.dashboard import DataTransformerConfig
from house import GPU_STATES, NODE_OF_ROW, Page, curve, fixed, grid, link, links, of_the_run, option, painted, placed, reading, rows
from shapes import with_bars, without_place


def gpus(page: Page) -> None:
    page.row("Do its GPUs work?")
    busy = reading("gpu:utilization_ratio:avg1m")
    traffic = reading("gpu:memory_bandwidth_utilization_ratio:avg1m")
    power = reading("gpu:power_of_limit_ratio:avg1m")
    room = reading("gpu:memory_headroom_ratio:min")
    page.add(
        _spread(
            "GPU utilization",
            busy,
            "Share of time that some kernel ran. Normal: above 70 %; under 50 % the data loader is too slow. "
            "100 % proves nothing: a hung collective spins at 100 %.",
        ),
        width=6,
        height=7,
    )
    page.add(
        _spread(
            "Memory traffic",
            traffic,
            "Share of time that the GPU's memory was busy. Normal: tens of percent in training. Near 0 at full utilization: "
            "the GPUs wait for one another.",
        ),
        width=6,
        height=7,
    )
    page.add(
        _spread(
            "Power, share of the limit",
            power,
            "The best single sign of work. Normal: 70 to 100 % in training. A hung run draws 14 to 25 %; "
            "one GPU below all others is the one to look at first.",
        ),
        width=6,
        height=7,
    )
    page.add(
        _spread(
            "Memory headroom",
            room,
            "Memory that neither the run nor the driver holds. Normal: level. PyTorch's allocator fills healthy cards to a few percent; "
            "shrinking for hours is a leak.",
            whole=False,
        ),
        width=6,
        height=7,
    )
    page.add(_each_gpu(busy, traffic, power, room), width=24, height=11)


def _spread(title: str, reading: str, about: str, *, whole: bool = True) -> Any:
    """Lowest, median and highest of the run's GPUs: readable for eight and for a thousand."""
    of_run = of_the_run(reading)
    panel = curve(
        title,
        {
            "highest": f"max by (cluster, run) ({of_run})",
            "median": f"quantile by (cluster, run) (0.5, {of_run})",
            "lowest": f"min by (cluster, run) ({of_run})",
        },
        unit="percentunit",
        about=f"{about} Lowest, median and highest of the run's GPUs. Without data no GPU is attributed to the run.",
        absent="no GPU attributed",
    )
    panel.min(0).axis_soft_max(1 if whole else 0.2)
    band = [option("custom.fillBelowTo", "lowest"), option("custom.fillOpacity", 15)]
    panel.override_by_name("highest", [fixed("#5794F2"), *band]).override_by_name("lowest", [fixed("#B877D9")])
    return panel.override_by_name("median", [fixed("orange"), option("custom.lineWidth", 2)])


def _each_gpu(busy: str, traffic: str, power: str, room: str) -> Any:
    about = (
        "Every GPU of the run as it is now, the least power first: in a hung run that is where to look; a click on a node leads to it. "
        "Normal: rows that look alike. An empty cell: that GPU did not answer, and what it does is not known."
    )
    hottest = reading("gpu:temperature_celsius:max")
    state = reading("gpu:state:code")
    readings = {"A": power, "B": busy, "C": traffic, "D": room, "E": hottest, "F": state}
    panel = grid(
        "GPUs, least power first",
        *(rows(placed(of_the_run(figure)), ref=ref) for ref, figure in readings.items()),
        unit="percentunit",
        about=about,
        absent="no GPU attributed",
    )
    names = {
        "Value #A": "power",
        "Value #B": "utilization",
        "Value #C": "memory traffic",
        "Value #D": "headroom",
        "Value #E": "temperature",
    }
    names |= {"Value #F": "state"}
    order = ("instance", "gpu", "Value #A", "Value #B", "Value #C", "Value #D", "Value #E", "Value #F", "uuid")
    organized = {
        "excludeByName": {"Time": True, "cluster": True, "run": True},
        "indexByName": {name: index for index, name in enumerate(order)},
        "renameByName": names,
    }
    panel.transformations([DataTransformerConfig(id_val="merge", options={}), DataTransformerConfig(id_val="organize", options=organized)])
    panel.sort_by([common.TableSortByFieldState().display_name("power").desc(False)]).min(0).max(1).cell_height(looks.TableCellHeight.SM)
    with_bars(panel, "power", "utilization", "memory traffic", "headroom")
    panel.override_by_name("temperature", [option("unit", "celsius"), option("decimals", 0), option("max", 110)])
    panel.override_by_name("state", painted(GPU_STATES))
    without_place(panel)
    panel.override_by_name("instance", [option("displayName", "node"), links(link("Node", NODE_OF_ROW))])
    return panel.override_by_name("gpu", [option("unit", "string"), option("custom.width", 60)])
