# The same as `python3 tools/dev.py run|test|test-real`.
PYTHON ?= python3
ARGS ?=

.PHONY: run test test-real

# `make run ARGS="snapshot --json"` passes arguments on.
run:
	@$(PYTHON) tools/dev.py run $(ARGS)

test:
	@$(PYTHON) tools/dev.py test

test-real:
	@$(PYTHON) tools/dev.py test-real
