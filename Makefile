# The commands of this repository. `make demo` and `make test` make .venv by themselves.
PYTHON ?= python3
WORKERS ?= 2
CHECKED := fedopal_secure/core fedopal_secure/encoding fedopal_secure/statistics fedopal_secure/solver \
	fedopal_secure/privacy fedopal_secure/he fedopal_secure/audit tools/mutants.py tools/sbom.py

.DEFAULT_GOAL := help
.PHONY: help demo test lint test-torch-free test-exhaustive security-tests audit sbom mutants vectors coverage bench \
	bench-scale bench-privacy bench-protocols bench-vision format constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

demo: .venv/.stamp ## twelve simulated clients train one classifier; five of them drop out
	.venv/bin/fedopal-secure demo

test: lint ## all checks and all tests
	.venv/bin/python -m pytest -n $(WORKERS) --security-tests=check

lint: .venv/.stamp ## formatting, lint, types, import layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy $(CHECKED)
	.venv/bin/lint-imports

test-torch-free: .venv-base/.stamp ## the server side in an environment that has no torch
	FEDOPAL_TORCH_FREE=1 .venv-base/bin/python -m pytest tests/torch_free

test-exhaustive: .venv/.stamp ## every order of messages and dropouts of four clients: minutes
	.venv/bin/python -m pytest -m exhaustive -s tests/stateful

security-tests: .venv/.stamp ## play every attack with and without its defence, and write docs/security-tests.md
	.venv/bin/python -m pytest -n $(WORKERS) tests/attacks --security-tests=write

audit: .venv/.stamp ## run the tests of every claim, one verdict each, and write docs/claims.md: minutes
	.venv/bin/fedopal-secure audit claims --write docs/claims.md

sbom: .venv/.stamp ## write dist/sbom.cdx.json: the package and what it runs on, as installed (CycloneDX)
	.venv/bin/python tools/sbom.py

mutants: .venv/.stamp ## remove each guard of the client in turn; some test must notice: an hour
	.venv/bin/python tools/mutants.py --workers $(WORKERS)

vectors: .venv/.stamp ## write the test vectors again from the reference implementations
	.venv/bin/python protocols/statistics/v1/generate.py
	.venv/bin/python protocols/secagg/v1/generate.py
	.venv/bin/python protocols/he/v1/generate.py

bench: .venv/.stamp ## secure aggregation beside Flower's SecAgg+, in one run: a quarter of an hour
	.venv/bin/python -m benchmarks.secagg

bench-scale: .venv/.stamp ## 1,000 and 10,000 clients, the server in a process of its own: an hour
	.venv/bin/python -m benchmarks.secagg_scale

bench-privacy: .venv/.stamp ## noise beside OpenDP's and beside masking; heads beside AdaSSP; modes: a quarter of an hour
	.venv/bin/python -m benchmarks.noise
	.venv/bin/python -m benchmarks.features digits --out runs/digits.npz
	.venv/bin/python -m benchmarks.private_solvers runs/digits.npz
	.venv/bin/python -m benchmarks.private_modes

bench-protocols: .venv/.stamp ## plain, masked and encrypted sums beside each other; audits beside rounds: ten minutes
	.venv/bin/python -m benchmarks.protocols
	.venv/bin/python -m benchmarks.verify

bench-vision: .venv/.stamp ## tuning beside a plain loop, statistics beside a Gram, heads beside AFL: half an hour
	.venv/bin/python -m benchmarks.tuning
	.venv/bin/python -m benchmarks.statistics
	.venv/bin/python -m benchmarks.solve

coverage: .venv/.stamp ## tests with line and branch coverage
	.venv/bin/python -m pytest -n $(WORKERS) --cov --cov-report=term-missing:skip-covered

format: .venv/.stamp ## rewrite the sources as `make test` wants them
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

# What torch pins by itself (CUDA libraries, triton) depends on the platform and stays out.
constraints: .venv/.stamp ## record the versions installed now, after the tests passed with them
	{ sed -n '/^#/p' constraints.txt; \
	  .venv/bin/pip freeze --exclude-editable | grep -E '^[A-Za-z0-9_.-]+==' | grep -viE '^(nvidia|cuda|triton)'; \
	} > constraints.new && mv constraints.new constraints.txt && touch .venv/.stamp

clean: ## remove the environments and what the tools left
	rm -rf .venv .venv-base .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage dist

.venv/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet -c constraints.txt -e ".[all,dev]"
	@touch $@

.venv-base/.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-base
	.venv-base/bin/pip install --quiet -c constraints.txt -e . pytest
	@touch $@
