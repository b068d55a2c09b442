# Everything runs in an environment of its own (requirements/test.txt), made on first use outside the checkout.

PYTHON := sh tools/python

.PHONY: test installs long mutate lint bench fuzz escape programs stories guard lock clean browser clients conformance suites \
	site fleet

# On all cores, as root and as an ordinary user at once; make test ARGS='-k undo', or ARGS='-n0 --pdb' to look closer
test:
	@$(PYTHON) tools/run_tests.py $(ARGS)

# The tests that make environments and install programs: first uses, frameworks with their suites; needs a package index
installs:
	@$(PYTHON) tools/run_tests.py --installs $(ARGS)

# The tests that take seconds each: kills at every step, whole days, thousands of files, many programs at once; and of
# those with many cases, what `make test` leaves out
long:
	@$(PYTHON) tools/run_tests.py --long $(ARGS)

lint:
	@$(PYTHON) -m ruff check --no-cache .
	@$(PYTHON) -m mypy --cache-dir=/dev/null

bench:
	@$(PYTHON) bench/run.py $(ARGS)

# Everything that reads what a command wrote, with fresh examples for so long; make fuzz SECONDS=3600
SECONDS ?= 600
fuzz:
	@$(PYTHON) tools/fuzz.py --seconds $(SECONDS) $(ARGS)

# Whether the tests notice a changed line of the sources, for fifty at random; make mutate ARGS='--seed 2 core/judge'
mutate:
	@$(PYTHON) tools/mutate.py $(ARGS)

# Every attack, on plain bubblewrap and in the hood; the table goes to docs/security.md.
escape:
	@$(PYTHON) tools/escape.py $(ARGS)

# Random stories of an agent and a person against a plain model; make stories ARGS='--count 1000 --way copy'
stories:
	@$(PYTHON) tests/model/stories.py $(ARGS)

# Real programs in the hood; make programs ARGS=--install has the missing ones installed.
programs:
	@$(PYTHON) tools/programs.py $(ARGS)

# Workers and Redis killed at random while 200 jobs are done, and what a fleet costs; needs redis-server
fleet:
	@$(PYTHON) tests/fleet/kills.py $(ARGS)
	@$(PYTHON) bench/fleet.py

# The program that confines writing, from tools/guard.c; needs compilers for both machines.
guard:
	@sh tools/guard

# The real Claude Code, Codex and Gemini CLI, driven by a scripted model; needs npm
clients:
	@$(PYTHON) tools/clients.py agents $(ARGS)

# The page of `fumehood web` in a real browser; needs Chromium. make browser ARGS='-k race'
# One test asks with the real Claude Code: that which `make clients` got, or FUMEHOOD_TESTS_CLAUDE=<its program>
browser:
	@$(PYTHON) tools/clients.py browser $(ARGS)

# The suites of the frameworks that have an adapter, and the examples; make suites ARGS=--write
suites:
	@$(PYTHON) tools/suites.py $(ARGS)

# The official MCP conformance runner and the Inspector; needs npm
conformance:
	@$(PYTHON) tools/clients.py conformance $(ARGS)

# The manual as a site, in build/site; a broken link is an error
site:
	@$(PYTHON) tools/manual.py

lock:
	@sh tools/lock

clean:
	rm -rf build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests tools bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
