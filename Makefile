# make verify          the CPU matrix on the embedded system (installs first)
# make test            lint, types and all tests; GPU tests are skipped with the reason
# make sglang-site     the released SGLang's metadata code from PyPI, for --sut sglang
# make vllm-site       the released vLLM's draft decode from PyPI, for --sut vllm
# make verify-vllm     the CPU matrix on the released vLLM (needs its site)
# make verify-sglang   the CPU matrix on the released SGLang (needs its site)
# make lint | bench    ruff and mypy | figures of the harness itself
# make docs            the documentation as a site, out/site/index.html
# make wheelhouse      wheels for a machine without a network, out/wheelhouse (docs/offline.md)
# make mutants         mutation tests of the code that judges, docs/equivalent_mutants.md; MODULES="harness.oracle ..."
# make clean           remove .venv and caches

PYTHON ?= python3
SGLANG_VERSION ?= 0.5.23
VLLM_VERSION ?= 0.33.0
WORKERS ?= 2

BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := verify
.PHONY: verify verify-sglang verify-vllm test lint bench docs wheelhouse sglang-site vllm-site install clean

verify: $(INSTALLED)
	$(BIN)/replay-harness verify

verify-sglang: $(INSTALLED)
	$(BIN)/replay-harness verify --sut sglang

verify-vllm: $(INSTALLED)
	$(BIN)/replay-harness verify --sut vllm

test: lint
	$(BIN)/python -m pytest -n $(WORKERS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict harness tests conftest.py docs/examples

bench: $(INSTALLED)
	$(BIN)/replay-harness bench cpu

docs: $(INSTALLED)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file .ci/mkdocs.yml

# setuptools builds an editable install where there is no network.
wheelhouse: $(INSTALLED)
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --wheel-dir out/wheelhouse \
		'.[dev,sglang]' 'setuptools>=77' -c constraints.txt

# Results are kept in mutants/: a run that was stopped goes on. MODULES limits it to some modules.
mutants: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check mutmut -c constraints.txt
	$(BIN)/python .ci/mutants $(MODULES)

sglang-site: $(INSTALLED)
	$(BIN)/python -m harness.sut.sglang.site --version $(SGLANG_VERSION)

vllm-site: $(INSTALLED)
	$(BIN)/python -m harness.sut.vllm.site --version $(VLLM_VERSION)

install: $(INSTALLED)

# Installed once; again when a dependency or a pin changes.
$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev,sglang,vllm]' -c constraints.txt
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
