# Everything is set up by make: a virtual environment in .venv, made once, and one for Flower's tests.
PYTHON ?= python3
TORCH ?= torch==2.13.0
WORKERS ?= 2
BIN := .venv/bin
READY := .venv/.ready
FLOWER_BIN := .venv-flower/bin
FLOWER_READY := .venv-flower/.ready

# One thread per process: on small machines more threads are slower, and their number changes bits.
export OMP_NUM_THREADS := 1
# Compiled modules are stored: pytest rewrites the asserts of the test files only when they change.
unexport PYTHONDONTWRITEBYTECODE
# A worker that has no tests left takes some of another.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

BUNDLE := bundles/prostate_mri_segmentation
# The seed of the demo's images and of its training.
SEED ?= 0
DEMO_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-attack demo-flare test test-engines test-consumers net-bits net-update settings lint format
.PHONY: site dist wheelhouse matrix bench clean

help: ## say what can be made
	@echo "usage: make TARGET [PYTHON=python3.11]"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## make .venv with everything, and do nothing else
	@echo "ready: . .venv/bin/activate, then monai-fairfl; or .venv/bin/monai-fairfl"

# The hospitals of an earlier version or of another seed are other hospitals: they are made again, in seconds.
demo: $(READY) ## train a federation of four synthetic hospitals and write its report
	rm -rf demo/hospitals demo/run
	$(BIN)/monai-fairfl demo --out demo --seed $(SEED) $(DEMO_ARGS)

demo-attack: $(READY) ## two more hospitals join the demo's, one sends noise, one lies: with and without guards
	rm -rf demo/attack
	$(BIN)/python -W ignore docs/examples/demo_attack.py --out demo/attack --seed $(SEED)

demo-flare: $(READY) ## the same hospitals in NVIDIA FLARE's simulator: a server and a process for each
	rm -rf demo/hospitals demo/flare
	$(BIN)/monai-fairfl demo --data-only --out demo/hospitals --seed $(SEED)
	$(BIN)/monai-fairfl train demo/hospitals --engine flare --strategy FedCE --quick --rounds 6 --seed $(SEED) \
		--out demo/flare

test: lint ## lint, then all tests that start no engine's servers: about 3 minutes on two cores
	$(PYTEST) -m "not engines and not consumers"

test-consumers: $(READY) ## MONAI Label and MONAI Deploy load what was trained; installs both, about two gigabytes
	$(PYTEST) -m consumers

# Flower 1.41 needs an older rich and protobuf than NVIDIA FLARE: its tests have an environment of their own.
FLOWER_TESTS = $(wildcard tests/test_rooms.py tests/engines/test_flower*.py tests/engines/test_conformance.py)
# One worker more than cores: tests of real processes wait for these.
test-engines: WORKERS := 3
test-engines: $(READY) $(FLOWER_READY) ## servers and simulators of NVIDIA FLARE and Flower
	$(PYTEST) -m engines
	$(FLOWER_BIN)/python -m pytest -n $(WORKERS) --dist loadfile monai_fairfl/transports/flower $(FLOWER_TESTS) -k flower

net-bits: $(READY) ## the numbers of the net and of the commit that tests/net/before names, to the bit: about 10 minutes
	$(BIN)/python tests/net/play.py --before

net-update: $(READY) ## write the net's rows that moved anew, once it is clear why they moved
	$(BIN)/python tests/net/play.py --update

settings: $(READY) ## write federate.json of the bundles and the page of keys from the table of settings
	$(BIN)/python docs/site/keys_page.py

lint: $(READY) ## check format, imports, style, types and who imports whom
	@failed=; for check in "black --check ." "isort --quiet --check ." "ruff check --quiet ." mypy lint-imports; do \
		echo "$(BIN)/$$check"; $(BIN)/$$check || failed="$$failed $${check%% *}"; done; \
		test -z "$$failed" || { echo "not in order:$$failed; 'make format' mends what it can" >&2; exit 1; }

format: $(READY) ## mend format and imports
	$(BIN)/black --quiet .
	$(BIN)/isort --quiet .
	$(BIN)/ruff check --quiet --fix --exit-zero .

# NO_MKDOCS_2_WARNING: a notice of the theme's makers, not about these pages.
site: $(READY) ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --site-dir build/site
	@echo "build/site/index.html"

dist: $(READY) ## build the source archive and the wheel in build/dist, and check how an index shows them
	rm -rf build/dist
	$(BIN)/python -m build --quiet --no-isolation --outdir build/dist
	$(BIN)/python -m twine check --strict build/dist/*
	@ls build/dist/*

# In a hospital without internet: pip install --no-index --find-links build/wheelhouse 'monai-fairfl[report]'
EXTRAS ?= report,dicom
wheelhouse: dist ## the wheel and everything it needs, in build/wheelhouse, for a machine without internet
	rm -rf build/wheelhouse
	$(BIN)/pip download --quiet --dest build/wheelhouse $(TORCH)
	$(BIN)/pip download --quiet --dest build/wheelhouse --find-links build/dist $(TORCH) "monai-fairfl[$(EXTRAS)]"
	@du -sh build/wheelhouse

MATRIX_ARGS ?= --tests
matrix: dist ## install and use the wheel with each Python on this machine, newest and oldest libraries
	$(BIN)/python tests/matrix.py build/dist --torch "$(TORCH)" $(MATRIX_ARGS)

# Not here: gpu.py needs a GPU. The other files are parts of these.
BENCHMARKS := attacks augmentation contributions engines growth jobs resizing rewards rounds server_step valuation
bench: $(READY) ## run the benchmarks that need no GPU; each prints its table
	@set -e; for name in $(BENCHMARKS); do echo "== $$name"; $(BIN)/python benchmarks/$$name.py; done

clean: ## remove all that make made: environments, demo, build products and caches
	rm -rf .venv .venv-flower demo build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

# torch comes first and alone, so that the version that was tested is the one that stays.
$(READY): NEEDED := dev,report
$(FLOWER_READY): NEEDED := tests,report,flower
$(READY) $(FLOWER_READY): setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "Python 3.10 or newer is needed; '$(PYTHON)' is older or cannot be started." >&2; \
		echo "Install one and name it: make PYTHON=python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(PYTHON) -m venv $(@D) || { \
		echo "$(PYTHON) cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(@D)/bin/pip install --quiet $(TORCH)
	$(@D)/bin/pip install --quiet --editable '.[$(NEEDED)]'
	@touch $@
