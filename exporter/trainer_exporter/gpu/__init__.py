"""NVML behind a process border: ``child`` asks the driver, ``poller`` knows the answers, their age, and whether the child lives."""
