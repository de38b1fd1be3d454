# What one does in a checkout. `make` alone lists the targets.

PYTHON ?= python3
VENV := .venv/bin
FRAMEWORKS := .venv-frameworks
BENCH := .venv-bench
POLICY := .venv-policy
AUDIT := .venv-audit
PYTEST := $(VENV)/python -m pytest -q
WORKERS ?= 4
SIDE_BY_SIDE := -n $(WORKERS) --dist worksteal
COMPILE := $(VENV)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
  --no-header --no-emit-index-url --no-emit-find-links

.PHONY: help setup rehearse test test-fast test-engine test-rehearsal guest-image test-guest test-long test-frameworks fuzz mutants kill-matrix kills scenarios campaign bench-setup policy-setup audit-setup audit tables coverage check fmt lock clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## checks the machine; makes .venv, the engine and the rehearsal's image
	@$(PYTHON) tools/setup.py

rehearse: setup ## the main job on this machine: trains, preempts three times, compares
	@$(VENV)/outlast rehearse

test: setup policy-setup audit-setup ## every test, the three tiers together; one that finds none fails
	$(PYTEST) $(SIDE_BY_SIDE) --all-tiers

test-fast: setup ## tests without engine, VMs and network, those of the shell among them
	$(PYTEST) $(SIDE_BY_SIDE)

test-engine: setup policy-setup ## tests with the Pulumi engine and the local cloud
	$(PYTEST) $(SIDE_BY_SIDE) -m 'engine and not long'

test-rehearsal: setup ## tests that boot VMs of the local cloud
	$(PYTEST) $(SIDE_BY_SIDE) -m 'rehearsal and not engine and not long'

guest-image: setup ## as root, once: what VMs boot from with --guest vm; DEBIAN=12 for Debian 12
	$(VENV)/python -m outlast.cli.guest_image $(if $(DEBIAN),--debian $(DEBIAN))

test-guest: setup ## VMs as machines of QEMU with a real Debian: needs make guest-image; up to an hour
	$(PYTEST) -m guest

test-long: setup ## what takes minutes or repeats another test in one more way: before a release
	$(PYTEST) -m long

test-frameworks: $(FRAMEWORKS)/installed ## tests with torch, Keras, JAX and XGBoost, in .venv-frameworks
	$(FRAMEWORKS)/bin/python -m pytest -q -m frameworks

$(FRAMEWORKS)/installed: requirements/frameworks.txt | setup
	$(VENV)/uv venv --quiet --clear --python $(VENV)/python $(FRAMEWORKS)
	$(VENV)/uv pip install --quiet --compile-bytecode --require-hashes --python $(FRAMEWORKS)/bin/python -r $<
	touch $@

fuzz: setup ## changed checkpoints, results and records, which must be read or refused; SECONDS=3600 for an hour
	$(VENV)/python -m tests.fuzz.run --seconds $(or $(SECONDS),120)

mutants: setup ## changes HEAD's code in many ways, each of which a test must notice; up to an hour
	$(VENV)/python -m tests.mutation.run $(if $(ONLY),--only $(ONLY))

kill-matrix: setup ## 30 kills each of the trainers dummy and digits; bench/README.md has the rest
	$(VENV)/python -m bench.kill_matrix --trainer dummy --trainer digits --points 30 --seed 1

kills: setup ## ten thousand kills by forks of one process, at exact operations; POINTS=500 for fewer
	$(VENV)/python -m bench.kill_matrix --forks --points $(or $(POINTS),10000) --seed $(or $(SEED),1)

scenarios: setup ## every named scenario and its planted mutant, with a table; about half an hour
	$(VENV)/python -m tests.scenarios.play

campaign: setup ## runs of all trainers, commands and sweeps under sampled faults; SECONDS=28800 for a night
	$(VENV)/python -m tests.campaign.run --seconds $(or $(SECONDS),1200) $(if $(SEED),--seed $(SEED)) $(if $(ONLY),--only $(ONLY))

bench-setup: $(BENCH)/installed ## .venv-bench: the peers that the benches measure beside us

$(BENCH)/installed: bench/requirements.txt | setup
	$(VENV)/uv venv --quiet --clear --python $(VENV)/python $(BENCH)
	$(VENV)/uv pip install --quiet --compile-bytecode --require-hashes --python $(BENCH)/bin/python -r $<
	touch $@

policy-setup: $(POLICY)/installed ## .venv-policy: what the policy pack runs in (--policy-pack policy)

$(POLICY)/installed: requirements/policy.txt | setup
	$(VENV)/uv venv --quiet --clear --python $(VENV)/python $(POLICY)
	$(VENV)/uv pip install --quiet --compile-bytecode --require-hashes --python $(POLICY)/bin/python -r $<
	touch $@

audit-setup: $(AUDIT)/installed ## .venv-audit: pip-audit, which make audit runs

$(AUDIT)/installed: requirements/audit.txt | setup
	$(VENV)/uv venv --quiet --clear --python $(VENV)/python $(AUDIT)
	$(VENV)/uv pip install --quiet --compile-bytecode --require-hashes --python $(AUDIT)/bin/python -r $<
	touch $@

audit: audit-setup ## known vulnerabilities of the locked packages; code 3, not audited, if no database answers
	$(VENV)/python tools/audit.py

tables: setup ## docs/configuration.md and other pages of tables, from what the code declares
	$(VENV)/python tools/tables.py
	$(VENV)/python tools/json_page.py
	$(VENV)/python tools/machines_table.py
	$(VENV)/python tools/assumptions_table.py
	$(VENV)/python tools/complaints_page.py
	$(VENV)/python -m bench.results --page

coverage: setup ## branch coverage by the tests without engine and VMs; fails where a part of tools/branches.py has under 95 %
	$(PYTEST) $(SIDE_BY_SIDE) --cov --cov-report=term --cov-report=json:build/coverage.json
	$(VENV)/python tools/branches.py build/coverage.json

check: setup ## ruff, pyright, then every test
	$(VENV)/ruff check .
	$(VENV)/ruff format --check .
	$(VENV)/pyright
	$(MAKE) --no-print-directory test

fmt: setup ## formats Python and shell
	$(VENV)/ruff check --fix-only .
	$(VENV)/ruff format .
	$(VENV)/shfmt -w -i 2 startup/*.sh outlast/cli/hosts/*.sh outlast/cli/hosts/pulumi-*

lock: setup ## locks requirements/*.in again, with hashes
	cd requirements && for set in runtime dev vm pip frameworks policy audit; do \
	  ../$(COMPILE) $$set.in -o $$set.txt || exit 1; \
	done && rm -f pip-*.whl && \
	../$(VENV)/python -m pip download --quiet --require-hashes --no-deps --only-binary :all: -r pip.txt -d .
	cd bench && ../$(COMPILE) --no-annotate requirements.in -o requirements.txt

clean: ## removes what was made here; the cache outside the checkout stays
	rm -rf .venv $(FRAMEWORKS) $(BENCH) $(POLICY) $(AUDIT) .outlast outlast/cli/hosts/pulumi build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
