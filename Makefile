.DEFAULT_GOAL := help
PYTHON ?= python3
TOOLS := .venv/.tools
UV := $(TOOLS)/bin/uv
RUN := .venv/bin/
# Registries fail sometimes: try three times.
again = for try in 1 2 3; do $(1) && exit 0; sleep 10; done; exit 1
UV_WANTED := 'uv>=0.9,<1'
PY_SPY_WANTED := 'py-spy>=0.4,<1'
export UV_HTTP_TIMEOUT ?= 120

.PHONY: help install demo dev test test-fast test-slow test-observability test-cluster chromium conformance fuzz lint format docs site sbom audit release screenshots chaos outage timing compatibility reruns soak large collect bench bench-compare profile clean

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{ \
		line = sprintf("  make %-18s", $$1); n = split($$2, words, " "); \
		for (i = 1; i <= n; i++) { \
			if (length(line) + 1 + length(words[i]) > 80) { print line; line = sprintf("%25s", "") } \
			line = line " " words[i] \
		} \
		print line }'

install: .venv/.installed ## .venv with the locked packages

# uv is installed into .venv, so only Python must be installed beforehand.
# Compile once here. If Python may not write its cache, each process would compile all libraries again.
.venv/.installed: uv.lock pyproject.toml
	@test -x $(UV) || ($(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| (echo "Batchwright needs Python 3.11 or newer; set PYTHON=/path/to/it" >&2; exit 1))
	@test -x .venv/bin/python || $(PYTHON) -m venv .venv
	@test -x $(UV) || $(PYTHON) -m venv $(TOOLS)
	@test -x $(UV) || { $(call again,$(TOOLS)/bin/python -m pip install --quiet $(UV_WANTED)); }
	$(call again,$(UV) sync --locked --inexact --compile-bytecode --python .venv/bin/python)
	.venv/bin/python -m compileall -q activities api batchwright simulator starter tests worker workflows
	@touch $@

demo: install ## 1,000 requests over three models through the whole stack
	$(RUN)batchwright demo

dev: install ## the embedded stack in the foreground
	$(RUN)batchwright dev

# Keep the tests that pytest has rewritten: each process would rewrite them again, a tenth of its time.
test: install ## units, real servers, whole stacks that lose their parts
	PYTHONDONTWRITEBYTECODE= $(RUN)pytest -n 6 --dist loadfile -m "not prometheus and not slow and not cluster"

test-slow: install chromium $(addsuffix /.installed,$(addprefix $(TOOLS)/,peers embedder llamacpp programs release)) ## more chaos, conformance, S3, encryption, traces, containers, peers: a stack each
	PYTHONDONTWRITEBYTECODE= $(RUN)pytest -n 3 --dist loadfile -m slow

chromium:
	-tests/tools/chromium

screenshots: install chromium ## the pictures of the pages in the documentation
	$(RUN)python -m tests.browser.screenshots

# In a separate process, because Temporal's client may abort its process at exit.
test-observability: install $(TOOLS)/prometheus ## dashboards and alerts against a real Prometheus
	PATH="$(CURDIR)/$(TOOLS)/prometheus:$$PATH" $(RUN)pytest -n 1 -m prometheus tests/observability

$(TOOLS)/prometheus:
	tests/tools/prometheus $@

test-cluster: install $(TOOLS)/kubernetes/kubelet ## image and chart on a real Kubernetes of one node; as root, on Debian 12
	tests/tools/kubernetes image $(TOOLS)/kubernetes
	tests/tools/kubernetes run $(RUN)pytest -m cluster tests/cluster

$(TOOLS)/kubernetes/kubelet: | .venv/.installed
	tests/tools/kubernetes programs $(@D)

test-fast: install ## the tests without real servers
	PYTHONDONTWRITEBYTECODE= HYPOTHESIS_PROFILE=quick $(RUN)pytest -n 2 --dist loadfile -m "not e2e and not integration and not prometheus and not slow" tests/unit tests/activities tests/replay

conformance: install ## the official clients against the contract, as a table
	$(RUN)pytest tests/conformance -q

fuzz: install ## any bytes as lines; new examples of all properties; every route against its description, ten minutes (FUZZ_SECONDS)
	HYPOTHESIS_PROFILE=fuzz $(RUN)pytest -q --timeout 1800 tests/unit/rules/input/test_lines_fuzzed.py
	HYPOTHESIS_PROFILE=random $(RUN)pytest -q --timeout 1800 -m hypothesis tests/unit tests/activities
	BATCHWRIGHT_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(RUN)pytest tests/conformance -q -s -k description

lint: install ## ruff, import rules, types
	$(RUN)ruff check .
	$(RUN)ruff format --check .
	$(RUN)lint-imports
	@$(call again,$(RUN)pyright --version >/dev/null)
	$(RUN)pyright

format: install ## put the code in shape
	$(RUN)ruff check --fix .
	$(RUN)ruff format .

docs: install ## the generated reference pages
	$(RUN)python docs/generate.py
	$(RUN)python -m tests.conformance.table

# Separate environments: the programs that make the site and examine packages are no dependencies of ours.
$(TOOLS)/docs/.installed $(TOOLS)/release/.installed: .venv/.installed
	$(call again,UV_PROJECT_ENVIRONMENT=$(@D) $(UV) sync --quiet --locked --only-group $(notdir $(@D)))
	@touch $@

site: install $(TOOLS)/docs/.installed ## documentation as pages with a search, in build/site/site; broken links fail
	$(RUN)python -m docs.site build/site
	PATH="$(CURDIR)/$(TOOLS)/docs/bin:$$PATH" zensical build --strict --config-file build/site/zensical.toml
	@! grep -rlE '<(script|link|img|iframe)[^>]+(src|href)="?(https?:)?//' --include='*.html' build/site/site \
		|| (echo "The pages above load files from another host." >&2; exit 1)

sbom: install $(TOOLS)/release/.installed ## what the image installs, as CycloneDX, in dist
	$(RUN)python -m deploy.release sbom dist

audit: install $(TOOLS)/release/.installed ## known vulnerabilities of what the image installs; asks a database
	$(RUN)python -m deploy.release audit

release: install $(TOOLS)/release/.installed ## all of a release but to publish it, in dist (RELEASE=--dry-run)
	$(RUN)python -m deploy.release build dist $(RELEASE)

chaos: install ## kill, freeze and cut a running stack for SECONDS (600) by SEED (1); seed after seed for the ledger: HOURS=8
	$(RUN)python -m tests.chaos --seconds $(or $(SECONDS),600) $(addprefix --seed ,$(SEED)) $(addprefix --hours ,$(HOURS))

outage: install ## one of two models answers nothing but 503 for SECONDS (600)
	$(RUN)python -m tests.chaos.outage --seconds $(or $(SECONDS),600)

timing: install ## seconds from a deadline or a cancel to the end of a batch; waiting reasons; a quarter of an hour
	$(RUN)python -m tests.timing

compatibility: install $(addsuffix /.installed,$(addprefix $(TOOLS)/,peers embedder llamacpp programs)) ## programs and servers of other projects with a stack, and the page about them; ten minutes
	$(RUN)python -m tests.compatibility

reruns: install ## retry and resume of a batch of LINES (50,000) lines: memory, time; four minutes
	$(RUN)python -m tests.soak.reruns --lines $(or $(LINES),50000)

soak: install ## one batch of LINES (1,000,000) small lines: memory, history, time; ten minutes
	$(RUN)python -m tests.soak --lines $(or $(LINES),1000000)

large: install ## memory and time a line, of a million lines and of LINES (2,000,000)
	$(RUN)python -m bench.large --lines $(or $(LINES),2000000)

collect: install ## memory and time of `batchwright collect`, with a million rows and with ROWS (5,000,000)
	$(RUN)python -m bench.collect --rows $(or $(ROWS),5000000) --suffix .csv --suffix .parquet

bench: install $(TOOLS)/peers/.installed $(TOOLS)/py-spy/.installed ## every target beside its yardstick, 52 minutes (BENCH="--quick --only whole")
	$(RUN)python -m bench $(BENCH)

bench-compare: install ## the same figures of OLD=ref and of these files, in turns (SECTIONS="ingestion whole")
	$(RUN)python -m bench.compare $(OLD) $(addprefix --only ,$(SECTIONS))

profile: install $(TOOLS)/py-spy/.installed ## where ingestion, slices and finalization spend their time
	$(RUN)python -m bench.profile

# Third-party programs for the benchmark and the tests, in separate directories.
$(TOOLS)/peers/.installed: bench/peers/requirements.txt tests/peers/litellm.txt
$(TOOLS)/embedder/.installed: tests/peers/litserve.txt
$(TOOLS)/llamacpp/.installed: tests/peers/llamacpp.txt
$(TOOLS)/programs/.installed: tests/peers/programs.txt
$(addsuffix /.installed,$(addprefix $(TOOLS)/,peers embedder llamacpp programs)): | .venv/.installed
	$(PYTHON) -m venv --clear $(@D)
	$(call again,$(UV) pip install --quiet --python $(@D)/bin/python $(addprefix -r ,$^))
	@touch $@

# With pip, so that its settings can name a build of PyTorch for CPUs. PyPI's needs CUDA's libraries on Linux, several GB.
$(TOOLS)/transformers/.installed: tests/peers/transformers.txt | .venv/.installed
	$(PYTHON) -m venv --clear $(@D)
	$(call again,$(@D)/bin/python -m pip install --quiet -r $<)
	@touch $@

$(TOOLS)/py-spy/.installed:
	$(PYTHON) -m venv $(@D)
	$(call again,$(@D)/bin/python -m pip install --quiet $(PY_SPY_WANTED))
	@touch $@

clean: ## remove the environment, what was built, and the data of `make dev`
	rm -rf .venv .batchwright build dist
