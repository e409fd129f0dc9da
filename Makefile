# The Python of .venv, or the newest supported one that runs: pyenv has names on PATH that do not.
PYTHON ?= $(shell for p in .venv/bin/python python3.13 python3.12 python3.11 python3; do \
	$$p $(SUPPORTED) >/dev/null 2>&1 && echo $$p && break; done)
SUPPORTED := -c 'import sys; v = sys.version_info[:2]; (3, 11) <= v <= (3, 13) or sys.exit(1); print("%d.%d" % v)'
PY := .venv/bin/python
COMMA := ,
# Tests compute on the CPU; `make demo` takes a GPU where there is one.
check test test-deep night newest trackers certify: export JAX_PLATFORMS ?= cpu
# Buffers in huge pages: see infra/ray/devices.py.
export GLIBC_TUNABLES ?= glibc.malloc.hugetlb=1

.PHONY: setup lock demo check test test-deep night newest trackers certify docs pictures clean

# make setup EXTRAS=cuda13, or cuda12, or tpu: where JAX computes, besides the CPU. EXTRAS=compilers: for what
# chips that are not there JAX can compile.
EXTRAS ?=
OPTIONAL := compilers cuda12 cuda13 tpu
$(if $(filter-out $(OPTIONAL),$(EXTRAS))$(word 2,$(EXTRAS)),$(error EXTRAS: one of $(OPTIONAL), or nothing for the CPU alone, not "$(EXTRAS)"))
INSTALLED := .venv/.installed$(addprefix -,$(EXTRAS))

setup: $(INSTALLED)

# Another target that needs `setup` names no EXTRAS, and keeps what is installed.
$(INSTALLED): pyproject.toml constraints.txt
	@$(or $(PYTHON),false) $(SUPPORTED) >/dev/null 2>&1 || { echo >&2 \
		"python: needs 3.11, 3.12 or 3.13, $(if $(PYTHON),and $(PYTHON) does not run or is another,and PATH has none);" \
		"name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.13"; exit 1; }
	@test -d .venv/lib/python$$($(PYTHON) $(SUPPORTED)) || rm -rf .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install --quiet --constraint constraints.txt --editable '.[dev$(addprefix $(COMMA),$(EXTRAS))]'
	touch $(sort .venv/.installed $@)

# locks/: what images are installed from. The versions are those of constraints.txt, with the digests of all their
# files and no address. parcel.txt has what the project needs, EXTRA.txt what an extra adds, build.txt what builds it.
LOCKED := kubernetes docker dataflow cuda12 cuda13 tpu
LOCK := .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --constraint constraints.txt \
	--generate-hashes --no-header --no-annotate --no-emit-index-url --no-emit-find-links
lock: setup
	mkdir -p locks
	$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' \
		| $(LOCK) --output-file locks/build.txt - > /dev/null
	$(LOCK) --output-file locks/parcel.txt pyproject.toml > /dev/null
	for extra in $(LOCKED); do $(LOCK) --extra $$extra --output-file locks/$$extra.txt pyproject.toml \
		$$(sed -n 's/==.*//; t name; d; :name s/^/--no-emit-package /p' locks/parcel.txt) > /dev/null || exit 1; done

demo: setup
	.venv/bin/parcel run

# A file's tests run in one process; files begin in the order of tests/conftest.py, the longest first.
BY_FILE := --dist loadfile --no-loadscope-reorder
check: setup
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/lint-imports
	.venv/bin/pyright
	$(PY) -m pytest -q -n 2 $(BY_FILE) -m "not e2e and not slow and not deep and not night" tests

# Three processes on two cores: these tests wait for servers and workers a third of the time.
test: check
	$(PY) -m pytest -q -n 3 $(BY_FILE) --durations 20 -m "(slow or e2e) and not deep and not night" tests

test-deep: setup
	$(PY) -m pytest -q -n 2 $(BY_FILE) --durations 20 -m "deep and not night" tests

# What is long by nature, whole: every ending of every command, the demo's margins, compile matrices.
# The matrix of all studies on all chips takes days: each night goes on where the last one ended.
MATRIX ?= 40
# Odd inputs of every reader of bytes.
INPUTS ?= 100000
night: setup
	$(PY) -m pytest -q -n 2 $(BY_FILE) --durations 20 -m night tests
	$(PY) -m tests.fuzz.run --inputs $(INPUTS)
	if $(NEWEST_PYTHON) -c ''; then $(MAKE) newest; else echo "newest: left out, there is no $(NEWEST_PYTHON)"; fi
	$(MAKE) trackers
	$(MAKE) certify SEED=$$(date +%j)
	$(PY) -m perf.matrix --limit $(MATRIX)

# The model with this month's JAX, on Python 3.13. The pins of constraints.txt move when the whole project can.
NEWEST_PYTHON ?= python3.13
newest:
	$(NEWEST_PYTHON) -m venv .venv-newest
	.venv-newest/bin/pip install --quiet --requirement constraints-newest.txt
	.venv-newest/bin/python -m pytest -q -n 2 $(BY_FILE) -m "not e2e and not slow and not deep and not night" tests/model

# What MLflow and W&B hold of a run, by these libraries, in an environment of their own.
trackers: setup
	$(PYTHON) -m venv .venv-trackers
	.venv-trackers/bin/pip install --quiet --constraint constraints.txt --editable '.[dev,mlflow,wandb]'
	.venv-trackers/bin/python -m pytest -q tests/flows/run/test_mlflow_runs.py tests/flows/run/test_wandb_runs.py \
		tests/e2e/test_trackers.py

# A study under seeded kills, failing disks, bad replies, clocks that are set and bits that flip; needs a C compiler.
FAULTS ?= 200
SEED ?= 1
certify: setup
	$(PY) -m tests.certificate --faults $(FAULTS) --seed $(SEED)

# The site of docs/, in site/; a link that leads nowhere fails.
docs: setup
	NO_MKDOCS_2_WARNING=1 JAX_PLATFORMS=cpu .venv/bin/mkdocs build --strict
	@echo "open $(CURDIR)/site/index.html"

# The screenshots in docs/pictures/, taken anew, of the demo.
pictures: demo
	$(PY) -m tests.e2e.pictures .parcel docs/pictures

clean:
	rm -rf .venv .parcel site
