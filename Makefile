# Every target sets up what it needs: once, into .venv. `make help` lists them.
# Variables: PYTHON=python3.12   ONLY="lab01 lab02"   LAB=lab02   SOURCE=labs   ARGS="-p PRESET micro"

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := course,real,test
export PATH := $(CURDIR)/$(BIN):$(PATH)# nbgrader calls alembic by name

.DEFAULT_GOAL := help
ifeq ($(origin PYTHON),command line)
ifneq ($(wildcard $(READY)),)
$(info PYTHON=$(PYTHON) is not used: .venv is set up. To set it up with another Python, first: make clean)
endif
endif
.PHONY: help run site test test-quick lint coverage lab check notebooks grade attacks formgrader colab doctor base bench accuracy fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(READY) ## run lessons and labs and write build/report/index.html (ONLY="01 lab02" SOURCE=labs ARGS="-p NAME VALUE")
	$(BIN)/python -m tools.run $(if $(ONLY),--only $(ONLY)) $(if $(SOURCE),--source $(SOURCE)) $(ARGS)

site: $(READY) ## write the executed course as a web site, build/site/index.html, running first what has not been run
	$(BIN)/python -m tools.site $(ARGS)

test: $(READY) ## run the tests, in two processes
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=15 $(ARGS)

test-quick: $(READY) ## run the tests but for the slow ones, in two processes: about a minute
	$(BIN)/python -m pytest --numprocesses=2 --dist=loadfile --no-loadscope-reorder -m "not slow" $(ARGS)

lint: $(READY) ## check style, format and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

coverage: $(READY) ## run the tests and name the lines that none of them reaches (twice as long)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest $(ARGS)
	$(BIN)/python -m coverage combine --quiet
	$(BIN)/python -m coverage report --show-missing

lab: $(READY) ## make or refresh work/, your own copies, and open JupyterLab there
	$(BIN)/python -m tools.place $(ARGS)

check: $(READY) ## say where you stand in the labs of work/ (LAB=lab01, or LAB="lab01 lab02")
	$(BIN)/python -m tools.check $(LAB) $(ARGS)

notebooks: $(READY) ## make lessons/, labs/ and solutions/ from content/
	$(BIN)/python -m tools.build $(ARGS)

grade: $(READY) ## grade build/grading/submitted/STUDENT/LAB/
	$(BIN)/python -m tools.grade $(ARGS)

attacks: $(READY) ## grade hostile answers, in a box and without one, and say what each gained (ARGS="--kind files")
	$(BIN)/python -m tests.attacks $(ARGS)

formgrader: $(READY) ## open JupyterLab at the repository, with nbgrader's pages, for whoever grades
	$(BIN)/jupyter lab $(ARGS)

colab: $(READY) ## make notebooks that carry the package, for Colab, in build/colab/
	$(BIN)/python -m tools.colab $(ARGS)

doctor: $(READY) ## look at Python, packages, GPU, disk, memory, and bubblewrap for grading
	$(BIN)/python -m tools.doctor

base: $(READY) ## train the small base model that ships with the package
	$(BIN)/python -m minigpt.base $(ARGS)

bench: $(READY) ## compare MiniGPT and the meter with other libraries: speed and memory
	$(BIN)/python -m tools.bench_speed
	$(BIN)/python -m tools.bench_nf4
	$(BIN)/python -m tools.bench_memory
	$(BIN)/python -m tools.bench_checkpointing
	$(BIN)/python -m tools.bench_allocator
	$(BIN)/python -m tools.bench_dequantizing

accuracy: $(READY) ## compare predicted with measured bytes over many models and plans
	$(BIN)/python -m tools.accuracy $(ARGS)

fuzz: $(READY) ## compare them over random models and plans, and shrink what differs (ARGS="--minutes 5 --seed 0")
	$(BIN)/python -m tools.fuzz $(ARGS)

clean: ## remove .venv and what lies in build/, except build/grading/
	rm -rf $(VENV)
	[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name grading -exec rm -rf {} +

# The stamp is written last, so that an interrupted set-up starts again from nothing. pip is quiet unless it fails: then
# its own last words are shown (--quiet would leave out which package, and why).
$(READY): pyproject.toml constraints.txt
	@start=$$(date +%s); log=$(VENV)/pip.log; \
	install() { $(BIN)/python -m pip install -c constraints.txt "$$@" >$$log 2>&1 || { tail -n 30 $$log >&2; return 1; }; }; \
	python=$$(bash tools/find_python.sh "$(PYTHON)") || exit 1; \
	if [ ! -e $@ ]; then rm -rf $(VENV); fi; rm -f $@; \
	echo "Setting up .venv with $$python: a few minutes, once."; \
	{ [ -d $(VENV) ] || "$$python" -m venv $(VENV); } && \
	install pip && install -e '.[$(EXTRAS)]' || exit 1; \
	install --no-deps --group unsloth || \
	  echo "Unsloth could not be installed: its part of the labs will be missing, everything else runs."; \
	touch $@; echo "Set up in $$(( $$(date +%s) - start )) s."
