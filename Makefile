# Everything a newcomer runs. Each target sets up what it needs: a virtual environment beside the sources, and Debian's packages of
# Prometheus and Alertmanager where they are missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROGRAMS := prometheus promtool prometheus-alertmanager amtool gcc
PACKAGES := prometheus prometheus-alertmanager gcc libc6-dev

.PHONY: help demo test check format dashboards test-live fuzz programs clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.ready ## a recorded real training breaks, and becomes a page; no GPU, no Grafana
	$(BIN)/python -B deploy/demo/demo.py

test: $(VENV)/.ready programs ## the whole suite, with the real Prometheus and Alertmanager
	$(BIN)/pytest -m "not live"

check: $(VENV)/.ready programs ## linters, types, rules, routes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	promtool check rules --lint=all --lint-fatal alertmanager/rules/*.yml
	promtool check config deploy/prometheus/prometheus.yml
	amtool check-config alertmanager/alertmanager.yml
	$(BIN)/python grafana/build.py --check

format: $(VENV)/.ready ## let the formatter have its way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(VENV)/.ready ## build the dashboards' JSON from their code
	$(BIN)/python grafana/build.py

test-live: $(VENV)/.ready .venv-live/.ready ## train tiny models for real and compare; installs torch into an environment of its own
	$(BIN)/pytest -m live tests/live

fuzz: $(VENV)/.ready ## the long run of hostile input: a million lines, 100 MB without a line end, every fixture cut at every byte
	$(BIN)/pytest tests/fuzz/long_run.py

.venv-live/.ready: tests/live/requirements.txt
	$(PYTHON) -m venv .venv-live
	.venv-live/bin/pip install --quiet --disable-pip-version-check -r tests/live/requirements.txt
	.venv-live/bin/pip install --quiet --disable-pip-version-check --no-deps llamafactory==0.9.5
	touch $@

programs: # Prometheus's own programs, for the tests that judge with the real ones
	@missing=""; for p in $(PROGRAMS); do command -v $$p >/dev/null || missing="$$missing $$p"; done; \
	[ -z "$$missing" ] && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing Debian's packages for:$$missing"; \
		apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $(PACKAGES) >/dev/null; \
	else \
		echo "missing programs:$$missing"; \
		echo "install them first, on Debian or Ubuntu with: sudo apt-get install $(PACKAGES)"; exit 1; \
	fi

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean: ## remove what the targets above made
	rm -rf $(VENV) .venv-live build dist exporter/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
