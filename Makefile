# Two commands set this project up: `make quickstart` and `make test`. `make help` lists the rest.
# Everything is in .venv and build/; only tools/system_packages.sh installs anything elsewhere.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Where it is set, as in many containers, torch would be compiled at each of its imports: four seconds each. Packages are
# installed with --no-compile, so that only modules that are imported get compiled, once.
export PYTHONDONTWRITEBYTECODE :=

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN := runs/quickstart
PYTEST ?= -m "not (slow or more)" -n 2 --dist loadfile

say = @printf '\n\033[1m== %s\033[0m\n' "$(1)"

.PHONY: help quickstart test quick-test build sdist wheel cpp-test python-test engine-test system-packages lint tidy format types docs requirements release coverage clean distclean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## ?(.*)/  make \1\t\2/' | expand -t 24

quickstart: quick-build  ## build, train on the bundled sample, export a net, evaluate it
	$(call say,Training an SFNNv5 net on the bundled sample (configs/quickstart.yaml))
	rm -rf $(RUN)
	$(BIN)/python train.py --config configs/quickstart.yaml
	$(call say,Exporting the best checkpoint)
	$(BIN)/nnue export $(RUN)/checkpoints/best.safetensors $(RUN)/quickstart.nnue
	$(call say,The score of the start position, in the engine's integer arithmetic)
	$(BIN)/nnue eval $(RUN)/quickstart.nnue --fen 'rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1'
	$(call say,Done)
	@echo "net          $(RUN)/quickstart.nnue"
	@echo "checkpoints  $(RUN)/checkpoints/"
	@echo "metrics      $(RUN)/metrics.jsonl, TensorBoard files in $(RUN)/tensorboard/"
	@echo
	@echo "Three things worth trying next:"
	@echo "  $(BIN)/nnue verify $(RUN)/quickstart.nnue          # the same numbers from a real Stockfish 15.1 (apt-get install stockfish)"
	@echo "  $(BIN)/nnue data info samples/train.binpack        # what it was trained on"
	@echo "  $(BIN)/python train.py --config configs/quickstart.yaml training.epochs=20 --run-dir runs/longer"

test: how-long system-packages build cpp-test python-test  ## build and run all tests but the slow ones

.PHONY: how-long
how-long:
	@echo "make test: about 18 minutes on two idle cores: build 3, CUDA 6, C++ tests 3, Python tests 6 (all of them: PYTEST='-n 2 --dist loadfile', 29). Parts:"
	@echo "make cpp-test, make python-test PYTEST='tests/data -k loader'"

# --- environment -----------------------------------------------------------------------------------------------------

PIP := $(BIN)/pip --disable-pip-version-check --quiet

LOCKED := install --require-hashes --no-deps

$(VENV)/.build-tools: requirements/build.txt
	$(call say,Environment: $(VENV) with the pinned requirements)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) -V 2>&1). Set PYTHON=..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { echo "python3-venv is missing: apt-get install python3-venv python3-dev"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $(LOCKED) -r requirements/build.txt
	@touch $@

$(VENV)/.requirements: requirements/torch.txt requirements/runtime.txt $(VENV)/.build-tools
	$(PIP) install --no-compile -r requirements/torch.txt
	$(PIP) $(LOCKED) --no-compile -r requirements/runtime.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt $(VENV)/.linked
	$(call say,Packages for tests and checks)
	$(PIP) $(LOCKED) -r requirements/dev.txt
	@touch $@

# The command line tool, linked to this folder. The native parts are built in place by `build`, so not here.
$(VENV)/.linked: $(VENV)/.requirements pyproject.toml
	@# The name of this distribution until 0.2.0.
	@$(PIP) uninstall --yes nnue-trainer 2>/dev/null || true
	NNUE_NO_EXTENSIONS=1 $(PIP) install --no-build-isolation --no-deps -e .
	@touch $@

BUILD = PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tools/quiet_build.py

# The data module does not need torch: it is compiled while pip installs the rest.
build: $(VENV)/.build-tools  ## compile the operator libraries and the data module in place
	$(call say,Build: op libraries (CUDA too where nvcc is) and the data module)
	@$(MAKE) --no-print-directory -j2 $(VENV)/.linked data-module
	@cuda="$(FORCE_CUDA)"; if [ "$$cuda" = if-usable ]; then cuda=; \
	$(BIN)/python -c 'import sys, torch; c = torch.cuda; sys.exit(not (c.is_available() and c.get_device_capability() >= (7, 5)))' || \
	{ cuda=0; export NNUE_PARTS=training; echo "No CUDA operators, as torch sees no GPU here with compute capability 7.5 or later; make build compiles them"; }; fi; \
	export FORCE_CUDA="$$cuda"; $(BUILD)
	@$(BIN)/nnue doctor --no-bench

.PHONY: data-module quick-build
data-module: $(VENV)/.build-tools
	@NNUE_PARTS=data $(BUILD)

# The CUDA sources take longer than all others together. The quickstart leaves them out if torch cannot use a GPU here,
# with the library of statistics, which is compiled at its first use. It compiles only for this CPU's instruction sets.
quick-build:
	@NNUE_ISA=native $(MAKE) --no-print-directory build FORCE_CUDA=if-usable

DIST := dist
# The times of files in a wheel, so that two builds of a commit have the same bytes.
EPOCH = $(shell git log -1 --format=%ct 2>/dev/null || echo 315532800)
sdist wheel: export SOURCE_DATE_EPOCH ?= $(EPOCH)

sdist: $(VENV)/.linked  ## make the source distribution in dist/
	rm -f $(DIST)/*.tar.gz
	NNUE_NO_EXTENSIONS=1 $(BIN)/python setup.py -q sdist --dist-dir $(DIST)

# WHEEL_OF=. builds it of this folder, with the objects of an earlier build.
wheel: sdist  ## make a wheel in dist/ from the source distribution, with the CPU and CUDA libraries
	$(call say,Wheel)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/pip --disable-pip-version-check wheel --no-build-isolation --no-deps -w $(DIST) $(or $(WHEEL_OF),$(DIST)/*.tar.gz)
	$(BIN)/python -m wheel tags --remove --platform-tag manylinux_2_35_$$(uname -m) "$$(ls -t $(DIST)/*.whl | head -n 1)"
	@ls -l $(DIST)

.PHONY: compare-builds
compare-builds: $(VENV)/.linked  ## build the wheel twice and compare the bytes
	@tools/compare_builds.sh

# --- checks ----------------------------------------------------------------------------------------------------------

system-packages:  ## install Debian packages for the tests (GoogleTest, Stockfish, clang-format)
	$(call say,System packages for the tests)
	@tools/system_packages.sh

cpp-test: $(VENV)/.dev  ## run the C++ tests of the data pipeline
	$(call say,C++ tests)
	@tools/cpp_tests.sh $(BIN)

python-test: $(VENV)/.dev build  ## run the Python tests but the slow ones; PYTEST='' runs also those
	$(call say,Python tests)
	$(BIN)/python -m pytest $(PYTEST)

# A part of each room that needs neither root nor programs beside g++: 70 s of CPU time.
QUICK := $(addprefix tests/,documents/test_{documents,code_in_documents}.py project/test_rooms.py cli/test_command_line.py \
	ops/test_feature_transformer.py data/test_{binpack,formats,filters}.py nets/test_{golden,evaluate}.py \
	config/test_config.py losses/test_losses.py training/test_end_to_end.py match/test_statistics.py)

quick-test: $(VENV)/.dev build  ## build what changed and run 700 quick tests, without root: about a minute
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "not (slow or more or cuda or compiler or rust or browser or engine or arm or onnx)" $(QUICK)

engine-test: $(VENV)/.dev build  ## run only the tests against a real Stockfish
	$(BIN)/python -m pytest -m engine

lint: $(VENV)/.dev  ## check with ruff and clang-format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@tools/clang_format.sh --check
	@tools/hygiene.sh

tidy: $(VENV)/.dev  ## check the data library with clang-tidy
	ls data_loader/{base,chess,evaluate,features,filters,formats,pipeline}/*.cpp | grep -v avx | \
		xargs -P $$(nproc) -I FILE $(BIN)/clang-tidy --quiet FILE -- -std=c++20 -Idata_loader

format: $(VENV)/.dev  ## format with ruff and clang-format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	@tools/clang_format.sh

types: $(VENV)/.dev build  ## run mypy on all files, and on the package as on macOS
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --cache-dir .mypy_cache/darwin nnue_trainer

$(VENV)/.docs: requirements/docs.txt $(VENV)/.requirements
	$(PIP) $(LOCKED) -r requirements/docs.txt
	@touch $@

docs: $(VENV)/.docs  ## build the documentation site in build/site; dead links are errors
	$(call say,Docs)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q
	@echo "build/site/index.html"

.PHONY: docs-version
docs-version: docs requirements/mike.txt  ## commit the site of VERSION to the branch gh-pages, as the latest one
	$(PIP) $(LOCKED) -r requirements/mike.txt
	git show-ref --quiet --verify refs/heads/gh-pages || git fetch origin gh-pages:gh-pages || true
	@# `make docs` has refused dead links. mike cannot hide the notes of mkdocstrings, which would be errors.
	NNUE_DOCS_STRICT=false NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike deploy --update-aliases \
		"$$(cut -d. -f1,2 <<<"$(VERSION)")" latest
	$(BIN)/mike set-default latest

requirements: $(VENV)/.build-tools  ## pin requirements/*.in again, with hashes (UPGRADE=--upgrade: the newest versions)
	@tools/requirements.sh $(UPGRADE)

release: $(VENV)/.dev  ## check, build and tag a release: make release VERSION=0.3.0 (DRY=--dry-run: only print)
	$(BIN)/python tools/release.py $(VERSION) $(DRY)

coverage: $(VENV)/.dev build  ## measure which lines of nnue_trainer/ the tests run
	$(BIN)/coverage run -m pytest -m "not cuda" $(PYTEST)
	$(BIN)/coverage combine -q
	$(BIN)/coverage report

clean:  ## remove build products
	rm -rf build dist *.egg-info nnue_trainer/*.so

distclean: clean  ## also remove the environment and runs
	rm -rf $(VENV) runs
