# Two commands matter: `make demo` and `make test`. Each builds the environment by itself.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PEERS  := .venv-peers
FLOWER := .venv-flower
RAY    := .venv-ray
PIP    := pip install --quiet --disable-pip-version-check

.PHONY: help demo test test-flower test-ray check lint format reference docs notebook bench-peers clean

help:    ## list the commands
	@grep -E '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## (.*)/  make \1\t\2/' | expand -t 20

demo: $(READY)    ## train a federation of different networks and bit-widths on handwritten digits (about a minute)
	$(BIN)/quped run

test: lint    ## format check, lint, types, then every test
	$(BIN)/pytest -n auto

test-flower: $(FLOWER)/.ready    ## federations over real servers, with Flower, in an environment of its own (minutes)
	PATH="$(CURDIR)/$(FLOWER)/bin:$$PATH" $(FLOWER)/bin/pytest -n 4 --dist loadfile --no-loadscope-reorder tests/flower

test-ray: $(RAY)/.ready    ## the tests of the engine "ray", in an environment of their own (minutes)
	PYTHONPATH=tests $(RAY)/bin/python -m pytest tests/simulation/test_ray.py tests/simulation/test_ray_nodes.py

check: lint    ## the fast part of `make test`: under two minutes
	$(BIN)/pytest -n auto -m 'not slow and not download'

lint: $(READY)    ## ruff and mypy --strict, no exceptions
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY)    ## rewrite the code in the project's format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

reference: $(READY)    ## write docs/reference/api.md from the docstrings
	$(BIN)/python docs/reference/generate.py

docs: reference    ## write the documents and the reference as a site to site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

notebook: $(READY)    ## run examples/tour.ipynb and keep what it shows
	$(BIN)/python docs/run_notebook.py

bench-peers: $(PEERS)/.ready    ## our engine beside Flower and pfl-research, in turns (minutes; ARGS=--json for numbers)
	$(PEERS)/bin/python benchmarks/peers.py $(ARGS)

clean:    ## remove the environments and every cache
	rm -rf $(VENV) $(PEERS) $(RAY) $(FLOWER) site .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"quped needs Python 3.11 or newer, {sys.executable} is {v.major}.{v.minor}: try make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/$(PIP) --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Ray is large, and has many packages of its own.
$(RAY)/.ready: pyproject.toml constraints-ray.txt
	$(PYTHON) -m venv $(RAY)
	$(RAY)/bin/$(PIP) --constraint constraints-ray.txt --editable '.[cli,data,ray]' pytest
	@touch $@

# What we and the peers both use, they want in versions of their own: only torch must be the same.
$(PEERS)/.ready: $(READY)
	$(BIN)/python -m venv $(PEERS)
	grep '^torch==' constraints.txt > $(PEERS)/torch.txt
	$(PEERS)/bin/$(PIP) --constraint $(PEERS)/torch.txt --editable .
	for peer in 'flwr[simulation]>=1.41' 'pfl[pytorch]>=0.6'; do \
		$(PEERS)/bin/$(PIP) --constraint $(PEERS)/torch.txt "$$peer" || echo "$$peer cannot be installed: left out."; \
	done
	@touch $@

# Flower wants older versions of packages that the rest has in newer ones.
$(FLOWER)/.ready: pyproject.toml constraints-flower.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER)/bin/$(PIP) --constraint constraints-flower.txt --editable '.[flower]' hypothesis pytest pytest-xdist
	@touch $@
