# Everything a newcomer runs. Each target sets up what it needs: a virtual environment beside the sources, and Debian's packages of
# Prometheus and Alertmanager where they are missing.

PYTHON ?= python3
SOAK_MINUTES ?= 30
VENV := .venv
BIN := $(VENV)/bin
PROGRAMS := prometheus promtool prometheus-alertmanager amtool gcc
PACKAGES := prometheus prometheus-alertmanager gcc libc6-dev

.PHONY: help docs demo test check format dashboards test-live test-delays test-engines test-hangs test-scale scale-out truth fuzz fuzz-guided bench mutate manifests dist wheelhouse lock sbom programs clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(VENV)/.ready ## a recorded real training breaks, and becomes a page; no GPU, no Grafana
	$(BIN)/python -B deploy/demo/demo.py

test: $(VENV)/.ready programs ## the whole suite, with the real Prometheus and Alertmanager
	$(BIN)/pytest -m "not live" -n 4 --dist loadfile --no-loadscope-reorder

check: $(VENV)/.ready .venv-operator/.ready programs ## linters, types, rules, routes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	promtool check rules --lint=all --lint-fatal alertmanager/rules/*.yml
	promtool check config deploy/prometheus/prometheus.yml
	amtool check-config alertmanager/alertmanager.yml
	$(BIN)/python alertmanager/build.py --check
	$(BIN)/python grafana/build.py --check
	$(BIN)/python deploy/kubernetes/build.py --check
	$(BIN)/python deploy/scale-out/build.py --check
	$(BIN)/python docs/build.py --check
	.venv-operator/bin/python deploy/kubernetes/validate.py

format: $(VENV)/.ready ## let the formatter have its way
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

dashboards: $(VENV)/.ready ## build the dashboards' JSON from their code, and what notifications tell from the runbooks
	$(BIN)/python alertmanager/build.py
	$(BIN)/python grafana/build.py

test-live: $(VENV)/.ready .venv-live/.ready ## train tiny models for real and compare; installs torch into an environment of its own
	$(BIN)/pytest -m live tests/live

truth: $(VENV)/.ready programs ## precision, recall and delay of every alert on runs whose truth is known
	$(BIN)/python tests/truth/score.py

test-delays: $(VENV)/.ready programs ## from the line in the log to the page, for each way to break, in real time against what is promised; four minutes
	$(BIN)/python tests/delays/measure.py

fuzz: $(VENV)/.ready ## the long run of hostile input: a million lines, 100 MB without a line end, every fixture cut at every byte
	$(BIN)/pytest tests/fuzz/long_run.py

chaos: $(VENV)/.ready programs ## kill, stop, starve and mislead the daemon: disks, clocks, inotify, files that are none; minutes
	$(BIN)/pytest tests/chaos/test_chaos.py tests/chaos/long_run.py

soak: $(VENV)/.ready ## half an hour of the real daemon at 50 times the usual load; SOAK_MINUTES for another time
	$(BIN)/python tests/soak/load.py --minutes $(SOAK_MINUTES)

soak-virtual: $(VENV)/.ready ## a month of a node in virtual time: 200 jobs, lost GPUs, reloads; does anything grow, go back or stay?
	$(BIN)/python tests/soak/month.py

FUZZ_SECONDS ?= 60

fuzz-guided: .venv-fuzz/.ready ## input that is changed towards what it has not yet reached, FUZZ_SECONDS for each of TARGETS
	.venv-fuzz/bin/python tests/fuzz/guided.py --seconds $(FUZZ_SECONDS) $(TARGETS)

# Without a wheel of atheris for this Python the input is changed by chance alone.
.venv-fuzz/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-fuzz
	.venv-fuzz/bin/pip install --quiet --disable-pip-version-check -e '.[basic-auth,tensorboard]' 'hypothesis>=6.100'
	-.venv-fuzz/bin/pip install --quiet --disable-pip-version-check --only-binary :all: 'atheris>=2.3'
	touch $@

bench: $(VENV)/.ready .venv-bench/.ready programs ## every figure of speed and its peers' in one table; BENCH='PART ... --json'. Half an hour
	PATH="$(CURDIR)/.venv-bench/bin:$$PATH" $(BIN)/python tests/bench/all.py $(BENCH)

.venv-bench/.ready:
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/pip install --quiet --disable-pip-version-check 'nvitop-exporter>=1.7'
	touch $@

docs: $(VENV)/.ready ## build the references of metrics and alerts
	$(BIN)/python docs/build.py

manifests: $(VENV)/.ready ## build what deploy/kubernetes derives from the chart, the rules and Alertmanager's configuration
	$(BIN)/python deploy/kubernetes/build.py

PYTHONS ?= $(wildcard /usr/bin/python3.1[0-4] $(HOME)/.pyenv/versions/3.1[0-4].*/bin/python3)

pythons: programs ## the tests of logs, units and pages on every Python of 3.10 to 3.14 that is here, or on PYTHONS
	@set -e; for python in $(PYTHONS); do \
		venv=.venv-$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); echo "== $$python"; \
		$$python -m venv $$venv && $$venv/bin/pip install --quiet --disable-pip-version-check -e '.[dev]'; \
		$$venv/bin/pytest tests/unit tests/formats tests/pages; \
	done

dist: .venv-release/.ready ## wheel and sdist of what is committed, byte for byte the same wherever they are built
	.venv-release/bin/python deploy/packages/dist.py

# What the files are for: the nodes' Python and platform, which need not be this machine's.
WHEELHOUSE_PYTHON ?= $(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
WHEELHOUSE_LOCK ?= deploy/container/requirements.txt

wheelhouse: dist ## dist/wheelhouse.tar: all that a node without a network installs, each file checked against the lock
	rm -rf dist/wheelhouse && mkdir -p dist/wheelhouse
	.venv-release/bin/python deploy/packages/lock.py $(WHEELHOUSE_LOCK) $(WHEELHOUSE_PYTHON) > dist/wheelhouse/requirements.txt
	.venv-release/bin/pip download --quiet --no-deps --require-hashes --only-binary :all: --python-version $(WHEELHOUSE_PYTHON) \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		--dest dist/wheelhouse -r dist/wheelhouse/requirements.txt
	cp dist/*.whl dist/wheelhouse/
	tar -C dist -cf dist/wheelhouse.tar wheelhouse

lock: .venv-release/.ready ## the versions and hashes that container and wheelhouse are made of, anew
	.venv-release/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --upgrade \
		--extra kubernetes --extra basic-auth pyproject.toml -o deploy/container/requirements.txt
	.venv-release/bin/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --no-header --upgrade \
		--extra all pyproject.toml -o deploy/container/requirements-all.txt

sbom: .venv-release/.ready ## dist/sbom.json: what the container is made of, in CycloneDX
	mkdir -p dist
	.venv-release/bin/cyclonedx-py requirements deploy/container/requirements.txt --pyproject pyproject.toml --output-reproducible -o dist/sbom.json

.venv-release/.ready: deploy/packages/requirements.txt
	$(PYTHON) -m venv .venv-release
	.venv-release/bin/pip install --quiet --disable-pip-version-check -r deploy/packages/requirements.txt
	touch $@

# The models of the operator's objects, by themselves: their package brings a plugin that pytest would load everywhere.
.venv-operator/.ready: deploy/kubernetes/requirements.txt
	$(PYTHON) -m venv .venv-operator
	.venv-operator/bin/pip install --quiet --disable-pip-version-check -r deploy/kubernetes/requirements.txt
	touch $@

test-engines: $(VENV)/.ready programs ## every scene of every alert in every engine: promtool and vmalert-tool on PATH and in PROGRAMS_DIR
	$(BIN)/python tests/rules/engines.py $(ALERTS)

SHARE ?= 5

test-hangs: $(VENV)/.ready programs ## jobs of 4 nodes x 8 GPUs that hang for 15 reasons, and 4 that do not, in real time; 20 minutes; SCENES=, SHARE= jobs on a node
	$(BIN)/python tests/hangs/all_at_once.py --share $(SHARE) $(SCENES)

ENGINE ?= prometheus
NODES ?= 1250
INTERVAL ?= 15s

test-scale: $(VENV)/.ready programs ## 1,250 simulated nodes, a hang and a lost card, in real time: two pages; ENGINE=victoria, NODES=, INTERVAL=
	$(BIN)/python tests/scale/incident.py --engine $(ENGINE) --nodes $(NODES) --interval $(INTERVAL)

scale-out: $(VENV)/.ready ## the rules in the forms of vmalert and Mimir
	$(BIN)/python deploy/scale-out/build.py

mutate: $(VENV)/.ready programs ## break every rule in every small way, and count what no scene notices; goes on where it was; RULES=FAMILY for one file
	$(BIN)/python tests/rules/mutate.py $(RULES)

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
	rm -rf $(VENV) .venv-fuzz .venv-bench .venv-live .venv-operator .venv-release .venv-3.* build dist exporter/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
