PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LEAN := $(VENV)/.lean
READY := $(VENV)/.ready
CONSTRAINTS := constraints.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint $(CONSTRAINTS)
# Of the demo, and of all that the tests and checks need besides.
LEAN_EXTRAS := sim,report
MORE_EXTRAS := data,ray,audit,flower,privacy,dashboard,export,docs,dev
comma := ,

.DEFAULT_GOAL := help
.PHONY: help install demo browser test test-lowest trackers flare test-slow stress mutate check lint docs notebooks gallery dist format golden shape bench bench-peers clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

install: $(READY) ## make .venv with everything that the demo, the tests and the checks need

# What the demo uses. Python compiles the modules that it imports when it imports them.
$(LEAN): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fedraw needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[$(LEAN_EXTRAS)]'
	@touch $@

# The rest. fedraw is named and not its folder, because pip would install the folder again.
# compileall compiles with all cores, pip with one. It cannot compile a few templates of packages.
$(READY): $(LEAN) studies/pyproject.toml
	$(PIP) --editable ./studies 'fedraw[$(MORE_EXTRAS)]'
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	@touch $@

demo: $(LEAN) ## silent rarity failure and its cure on embedded data: a table and runs/demo/report.html
	$(BIN)/fedraw demo

test: install browser ## run all tests but the slow ones
	$(BIN)/pytest -q @tests/suite/parallel.txt

# Page tests skip where there is no Chromium; in CI they must run, so it is installed. Those of
# accessibility need axe-core besides, which npm fetches; offline they skip as well.
AXE := axe-core@4.14.0
browser:
	@if [ -n "$$CI" ] && ! command -v chromium >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; fi
	@if [ -n "$$CI" ] && ! command -v npm >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq --no-install-recommends npm >/dev/null; fi
	@if [ -d $(VENV) ] && [ ! -s $(VENV)/axe.min.js ] && command -v npm >/dev/null; then \
	  cd $(VENV) && npm pack --silent --fetch-retries=0 $(AXE) >/dev/null 2>&1 && \
	  tar -xzOf axe-core-*.tgz package/axe.min.js > axe.min.js; rm -f axe-core-*.tgz; true; fi

# Old packages use what the newest of their own dependencies deprecate, which is no fault of ours.
# Tests pin messages in the words of one version of click.
test-lowest: ## run these tests with the lowest versions that pyproject.toml allows; makes .lowest
	@[ -s .lowest/constraints.txt ] || { $(PYTHON) -m venv .lowest && \
	  .lowest/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt uv && \
	  grep ^click== constraints.txt > .lowest/click.txt && \
	  .lowest/bin/uv pip compile --quiet --python .lowest/bin/python --resolution lowest-direct \
	  $(foreach extra,$(subst $(comma), ,$(LEAN_EXTRAS),$(MORE_EXTRAS)),--extra $(extra)) \
	  --constraint .lowest/click.txt pyproject.toml --output-file .lowest/constraints.txt >/dev/null; }
	PYTEST_ADDOPTS='-W ignore::DeprecationWarning' \
	  $(MAKE) VENV=.lowest CONSTRAINTS=.lowest/constraints.txt test

# MLflow and Weights & Biases are large: their tests use an environment of their own.
trackers: install
	@[ -x .trackers/bin/python ] || { $(PYTHON) -m venv .trackers && \
	  .trackers/bin/pip install --quiet --disable-pip-version-check mlflow wandb -e .; }

# NVIDIA FLARE brings a web server and more: its tests, and only they, use an environment of their own.
flare: install
	@[ -x .flare/bin/pytest ] || { $(PYTHON) -m venv .flare && \
	  .flare/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  --editable '.[flare,sim]' hypothesis pytest; }

test-slow: install trackers flare ## run the tests marked slow
	$(BIN)/pytest -q -m slow
	.flare/bin/pytest -q -m slow tests/flare

stress: install ## kill, damage, flood and feed nonsense; counts of what came of it (stress/README.md)
	$(BIN)/python -m stress

mutate: install ## change one line at a time and see whether a test notices
	@status=0; \
	$(BIN)/python -m stress.mutate --sample 200 --seed 1 || status=1; \
	$(BIN)/python -m stress.mutate --package server --sample 200 --seed 1 || status=1; \
	exit $$status

check: install ## format, lint, strict types, ceilings of lines, the site; changes nothing
	@$(MAKE) --no-print-directory --jobs 2 lint docs

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/shape.py --check

docs: install ## build the site docs/_build/html; a warning or a dead internal link is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs docs/_build/html
	@echo "the site: docs/_build/html/index.html"

notebooks: install ## execute the tutorials and store their outputs
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python tools/notebooks.py

gallery: install ## make the pages of docs/gallery: an audit and a report
	$(BIN)/fedraw audit examples/audit/labels.csv --times examples/audit/times.csv \
	  --out docs/gallery/audit.html >/dev/null
	for method in fedfa fedbuff fedraw fedraw-replay; do \
	  $(BIN)/fedraw run examples/fedraw.toml --set strategy.name=$$method --seeds 42,123 \
	    --out runs/gallery/$$method --force >/dev/null || exit 1; done
	$(BIN)/fedraw report runs/gallery/* --title "Four methods on digits" --out docs/gallery/report.html

dist: install ## build the wheel and the source distribution into dist/, and check them
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	@ls -l dist | awk 'NR > 1 {print $$5, $$9}'

format: install ## format and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

golden: install ## compare all methods' decisions with pinned ones; AGAINST=COMMIT: with a commit's
	$(BIN)/python tools/golden.py $(if $(AGAINST),--against $(AGAINST))

shape: install ## measure the shape of the code: size, cohesion, path lengths, documentation, start-up
	$(BIN)/python tools/shape.py

bench: install ## measure; prints ratios (results with date and machine: benchmarks/README.md)
	$(BIN)/python -m benchmarks.simulation_efficiency
	$(BIN)/python -m benchmarks.local_training
	$(BIN)/python -m benchmarks.growth
	$(BIN)/python -m benchmarks.arrivals
	$(BIN)/python -m benchmarks.aggregation
	$(BIN)/python -m benchmarks.rarity
	$(BIN)/python -m benchmarks.sums
	$(BIN)/python -m benchmarks.checkpoints
	$(BIN)/python -m benchmarks.server_arrival
	$(BIN)/python -m benchmarks.journal
	$(BIN)/python -m benchmarks.method_cost
	$(BIN)/python -m benchmarks.audit

bench-peers: install ## the same jobs in other simulators; makes .peers, 7 GB, at the first time
	@[ -d .peers ] || sh benchmarks/peers/setup.sh
	$(BIN)/python -m benchmarks.peers
	$(BIN)/python -m benchmarks.peers.lines

clean: ## remove .venv, caches and runs
	rm -rf $(VENV) runs build dist docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
