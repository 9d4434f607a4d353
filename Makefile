# Everything runs in $(VENV), which `make install` creates. Useful variables:
#   PYTHON=python3.12        the interpreter to build it with (3.11 to 3.13)
#   SKYRL_PYTHON=python3.12  the interpreter of SkyRL, for `make tinker-peers` (3.12 or 3.13)
#   PIP_OPTIONS="..."        more options for pip, for example --index-url of a mirror
#   TORCH_INDEX=URL          where torch without CUDA is looked for on a machine without an NVIDIA GPU,
#                            once; TORCH_INDEX= for nowhere
PYTHON ?= python3
VENV ?= .venv
VLLM ?= .vllm
ART ?= .art-env
NAT ?= .nat-env
TINKER ?= .tinker-env
VIEW ?= .view-env
TRACKERS ?= .trackers-env
INSPECT ?= .inspect-env
VERIFIERS ?= .verifiers-env
JUDGES ?= .judges-env
CLIENTS ?= .clients-env
DOCS ?= .docs-env
PEERS ?= .peers
NIP_GPU_MODEL ?= Qwen/Qwen2.5-3B-Instruct
PIP_OPTIONS ?=
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# More than a small machine has cores: many tests wait for servers.
TEST_JOBS ?= 3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
QUICKSTART := $(VENV)/.installed-quickstart

.PHONY: test-packages help install quickstart test test-long test-all test-server test-factory test-kills coverage check format bench bench-check side-by-side tinker-peers test-engines test-art test-nat test-tinker test-tinker-service test-clients test-learning test-cluster test-cluster-short test-security up kill-matrix test-gpu gpu-session paper-iteration study soundness unanswered unanswered_smollm2 clean test-trackers test-inspect test-verifiers test-judges test-view test-real docs notebooks test-docs screenshots test-hosts

help:
	@echo "make quickstart     install, train on the bundled problems, print where the report is"
	@echo "make test           install, run the tests of nip-loop; PART=nip-study those of another distribution"
	@echo "make test-packages  the tests of all distributions in packages/"
	@echo "make test-long      what takes longer: make test-server, test-factory, test-kills and more"
	@echo "make test-all       all of that, and make test-long, in one run"
	@echo "make test-server    train and generate with real models on lm_server"
	@echo "make test-factory   build the bundled problems again, measure the tiny model"
	@echo "make test-kills     kill a run 20 times, evenly over all that it does"
	@echo "make coverage       the tests again, measuring what of nip_core they run (at least 85 %)"
	@echo "make check          formatting, lint, types, import contracts"
	@echo "make test-engines   build an environment with vLLM (CPU) and run the tests on it"
	@echo "make test-art       build an environment with OpenPipe ART's client and run the tests on it"
	@echo "make test-nat       build an environment with NeMo Agent Toolkit and run its fine-tuning command"
	@echo "make test-tinker-service  kill jobs at a service of Tinker's API at every point"
	@echo "make test-tinker    build an environment with Tinker's SDK and cookbook, run recipes on the server"
	@echo "make test-trackers  build an environment with all trackers and run the tests on them"
	@echo "make test-inspect   build an environment with inspect_ai and run the tests on it"
	@echo "make test-verifiers build an environment with verifiers and run the tests on it"
	@echo "make test-judges    build environments with libraries of judges and run the tests on them"
	@echo "make test-view      build an environment with playwright and axe-core, look at nip view"
	@echo "make test-clients   build an environment with clients of other projects, run the tests on it"
	@echo "make test-real      add a published model from the package index, and a small whole run with it"
	@echo "make docs           build the site from docs/ into build/docs/site, and check its links"
	@echo "make notebooks      execute the notebooks of docs/notebooks anew"
	@echo "make test-docs      run every command of the pages, and the notebooks; take the screenshots"
	@echo "make test-gpu       the tests that need CUDA; NIP_VLLM names the vllm command"
	@echo "make gpu-session    measure everything on a GPU, in pieces of ten minutes, nothing downloaded"
	@echo "make paper-iteration   one iteration of the paper's size on a GPU, with a model of the hub"
	@echo "make up             PostgreSQL, Prefect and a worker; Ctrl-C ends them"
	@echo "make test-cluster   Prefect's UI in a browser, dead workers, make up, object stores"
	@echo "make test-hosts     hosts cut off, killed, full, late; stores and servers that fail; a table (root)"
	@echo "make kill-matrix    kill runs and servers at every write and request, inject 1,000 faults"
	@echo "make test-security  attack servers and more, on loopback: minutes, on a quiet machine"
	@echo "make test-learning  measure learning over seeds and controls (about an hour)"
	@echo "make study          the declared study, an hour of it: again until nothing is left"
	@echo "make soundness      the study of soundness with a theorem, an hour of it, too"
	@echo "make unanswered     does a verifier taught to reject one missing answer reject others; likewise"
	@echo "make bench          the benchmarks"
	@echo "make bench-check    processor seconds of each kind of work, compared with the commit before"
	@echo "make side-by-side   build environments with other projects and measure them and nip in one run"
	@echo "make tinker-peers   measure Tinker's API by nip and by SkyRL, in environments that it builds"

install: $(INSTALLED)

VENV_MADE = $(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), f"nip needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; set PYTHON=..."' && $(PYTHON) -m venv $(VENV)
INSTALL = PIP_OPTIONS="$(PIP_OPTIONS)" TORCH_INDEX="$(TORCH_INDEX)" $(BIN)/python scripts/install.py

# For developers and CI: what tests and checks need, too.
$(INSTALLED): pyproject.toml $(wildcard packages/*/pyproject.toml) constraints.txt
	$(VENV_MADE)
	$(INSTALL) --quiet local,dev
	@touch $(QUICKSTART) $(INSTALLED)

# For whoever only uses it; `make install` adds the rest to the same environment.
$(QUICKSTART): pyproject.toml $(wildcard packages/*/pyproject.toml) constraints.txt
	@$(VENV_MADE)
	@$(INSTALL) local
	@touch $(QUICKSTART)

quickstart: $(QUICKSTART)
	@$(BIN)/nip quickstart

PYTEST := $(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder \
	--durations=20 --durations-min=5

# The tests of the root, nip-loop. With PART=nip-study those of that distribution; with ALL=1 those of all,
# and what is long, too, or the part of it that NIP_LONG_PART names; see `test-all`.
PART ?=
test: install
	$(if $(ALL),NIP_LONG_PART=$${NIP_LONG_PART:-1/1}) $(PYTEST) \
		$(if $(ALL),tests packages $(LONG),$(if $(PART),packages/$(PART)/tests,tests))

# Those of all distributions but the root.
test-packages: install
	$(PYTEST) packages

# What is too long for `make test`: these folders, what is marked `long`, and all examples, kill points
# and pairs of settings of files of which `make test` tries a part (tests/helpers/tiers.py).
LONG := packages/nip-lm-server/tests/long packages/nip-study/tests/long tests/flows/long tests/factory
test-long: install
	NIP_KILL_POINTS=20 NIP_THOROUGH=1 NIP_LONG_ALONE=1 $(PYTEST) tests packages $(LONG)

# Both in one run, which loads everything once, and has one end in which a processor waits.
test-all:
	NIP_KILL_POINTS=20 NIP_THOROUGH=1 $(MAKE) test ALL=1

# Trainings, the embedded engine, servers and engines as processes.
test-server: install
	$(PYTEST) packages/nip-lm-server/tests/long

# The bundled problems and the tiny model, built again.
test-factory: install
	$(PYTEST) tests/factory

# 20 kills, evenly over all that a run does; `make test` has one of each kind.
test-kills: install
	NIP_KILL_POINTS=20 $(BIN)/python -m pytest tests/durability/test_kill_matrix.py

coverage: install
	$(PYTEST) --cov --cov-report=term:skip-covered

check: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: install
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The real vLLM in an environment of its own, which the script builds once and keeps.
test-engines: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_vllm_cpu.sh $(VLLM)
	NIP_VLLM=$(abspath $(VLLM))/bin/vllm $(PYTEST) packages/nip-lm-server/tests/engines

# OpenPipe ART's client in an environment of its own; the servers run in $(VENV).
test-art: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_art.sh $(ART)
	NIP_PYTHON=$(abspath $(BIN))/python $(ART)/bin/python -m pytest packages/nip-by-hand/tests/art

# NeMo Agent Toolkit in an environment of its own; the servers run in $(VENV).
test-nat: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_nat.sh $(NAT)
	NIP_PYTHON=$(abspath $(BIN))/python $(NAT)/bin/python -m pytest packages/nip-by-hand/tests/nat

# Tinker's SDK and cookbook in an environment of their own, which has none of what the server's other tests
# need (--confcutdir); the servers run in $(VENV). Writes the table
# of the docs. One file: make test-tinker TINKER_TESTS=packages/nip-lm-server/tests/tinker/test_sdk.py
TINKER_TESTS ?= packages/nip-lm-server/tests/tinker
test-tinker: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_tinker.sh $(TINKER)
	NIP_PYTHON=$(abspath $(BIN))/python NIP_TINKER_RESULTS=$(abspath docs/results) \
		$(TINKER)/bin/python -m pytest --confcutdir packages/nip-lm-server/tests/tinker $(TINKER_TESTS)

# Jobs at a service of Tinker's API, killed before and after all that they do: half an hour.
test-tinker-service: install
	NIP_THOROUGH=1 NIP_TINKER_POINTS=all $(BIN)/python -m pytest -n 0 packages/nip-tinker/tests

# trackio, W&B, MLflow and TensorBoard in an environment of their own, with nip as it is installed.
test-trackers: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_trackers.sh $(TRACKERS)
	$(TRACKERS)/bin/python -m pytest packages/nip-bridges/tests/trackers

# inspect_ai and nip in an environment of their own; its view is opened in a browser, from the
# system's packages: apt-get install chromium, or NIP_CHROMIUM. Quick: make test-inspect EPISODES=20
EPISODES ?= 200
test-inspect:
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_inspect.sh $(INSPECT)
	NIP_INSPECT_EPISODES=$(EPISODES) $(INSPECT)/bin/python -m pytest -n $(TEST_JOBS) --dist loadfile packages/nip-bridges/tests/inspect

# verifiers, nip and nip-verifiers in an environment of their own. Quick: make test-verifiers EPISODES=20
test-verifiers:
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_verifiers.sh $(VERIFIERS)
	NIP_VERIFIERS_EPISODES=$(EPISODES) $(VERIFIERS)/bin/python -m pytest -n $(TEST_JOBS) --dist loadfile tests/verifiers

# Inspect's scorers, and judges of verifiers, TRL, DSPy and ART: the first asks for a newer openai than
# the others take, so there are two environments. The second has reasoning-gym, too.
test-judges:
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_inspect.sh $(INSPECT)
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_judges.sh $(JUDGES)
	for part in $(INSPECT):with_inspect $(JUDGES):with_others; do \
		$${part%:*}/bin/python -m pytest packages/nip-judges/tests/libraries/$${part#*:} \
			packages/nip-judges/tests/libraries/test_openai_graders.py || exit; \
	done
	$(JUDGES)/bin/python -m pytest tests/reasoning_gym tests/scenarios/test_reasoning_gym.py

# nip view in a browser, from the system's packages: apt-get install chromium, or NIP_CHROMIUM. What
# drives it and looks for barriers comes from npm. NIP_SHOTS=DIR takes pictures of every page.
test-view: install
	scripts/build_view.sh $(VIEW)
	NIP_VIEW_ENV=$(abspath $(VIEW)) $(BIN)/python -m pytest packages/nip-view/tests/browser

# A published model, from the package index to a trained adapter: with vLLM too, where make test-engines
# has built one. It stays in the models' directory of this user; NIP_MODELS_DIR names another.
test-real: install
	$(BIN)/python -m pytest -n 0 --durations=0 tests/real

# openai, litellm, langchain-openai, instructor, dspy and openai of npm; writes the table of the docs.
test-clients: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_clients.sh $(CLIENTS)
	NIP_PYTHON=$(abspath $(BIN))/python NIP_CLIENTS_RESULTS=docs/results \
		$(CLIENTS)/bin/python -m pytest --confcutdir packages/nip-lm-server/tests/clients \
		packages/nip-lm-server/tests/clients

# The site, in an environment of its own; once that is built, without a network.
$(DOCS)/.built: scripts/build_docs.sh scripts/docs_constraints.txt
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_docs.sh $(DOCS)
	@touch $@

docs: $(DOCS)/.built
	NIP_DOCS_ENVIRONMENT=$(abspath $(DOCS)) $(DOCS)/bin/python scripts/docs/build.py

notebooks: $(DOCS)/.built
	$(DOCS)/bin/python scripts/docs/execute.py

# What the pages say to type, as it stands there; the notebooks show what they showed.
test-docs: install docs
	$(DOCS)/bin/python scripts/docs/execute.py --check
	$(BIN)/python -m pytest -n $(TEST_JOBS) --dist loadgroup --durations=20 tests/docs

test-learning: install
	$(BIN)/python -m pytest -m learning tests packages tests/factory packages/nip-lm-server/tests/long
	$(BIN)/python benchmarks/server_learning.py --out docs/results/server_learning.json
	$(BIN)/python benchmarks/learning.py --out docs/results/learning.json
	$(BIN)/python benchmarks/learning.py --game arithmetic --out docs/results/arithmetic_learning.json
	$(BIN)/python benchmarks/learning.py --game reading --out docs/results/reading_learning.json
	$(BIN)/nip models add smollm2
	$(BIN)/python benchmarks/learning.py --game smollm2 --out docs/results/smollm2.json
	$(BIN)/python benchmarks/policy_gradient.py --out docs/results/policy_gradient.json

# NIP_VLLM: the `vllm` command of a CUDA build, in an environment of its own. Without it what needs
# vLLM is a row with that reason. Each piece is ended after ten minutes and goes on with what is
# missing when the same is made again; GPU_SESSION="noise --again" measures one once more.
GPU_SESSION ?= all
gpu-session: install
	$(BIN)/python benchmarks/gpu_session.py $(GPU_SESSION) --out docs/results/gpu_session.json

# The tests that need CUDA; what came of each is in docs/results/gpu_tests.json.
test-gpu: install
	$(BIN)/python benchmarks/gpu_session.py tests-training tests-embedded tests-serving tests-engines --again \
		--seconds 1800 --out docs/results/gpu_tests.json

# NIP_GPU_MODEL: a model of a few billion parameters, by name or path. Needs the network.
paper-iteration: install
	$(BIN)/python benchmarks/paper_iteration.py --model $(NIP_GPU_MODEL) --out docs/results/paper_iteration.json

kill-matrix: install
	NIP_KILL_POINTS=all NIP_FAULTS=1000 NIP_KILL_RESULTS=docs/results \
		$(BIN)/python -m pytest -m "kill_matrix or not learning" tests/durability
	NIP_KILL_POINTS=all NIP_KILL_RESULTS=docs/results \
		$(BIN)/python -m pytest tests/cluster/test_worker_kill.py
	$(BIN)/python -m pytest -m kill_matrix --ignore tests/durability tests packages packages/nip-lm-server/tests/long

# What needs a Prefect server of its own, PostgreSQL or a browser. From the system's packages:
# apt-get install postgresql chromium. One part: make test-cluster CLUSTER=tests/cluster/test_up.py
CLUSTER ?= tests/cluster
test-cluster: install
	$(INSTALL) --quiet local,dev,cluster
	$(BIN)/python -m pytest $(CLUSTER)

# A Dask cluster, an object store, PostgreSQL with all of make up, manifests: four minutes.
test-cluster-short:
	$(MAKE) test-cluster CLUSTER="-m short tests/cluster"

# Hosts of Linux namespaces, for root alone, and what happens between them; this is a part of
# test-cluster-short. Then runs on such hosts, a fault each, and the table of what was lost and how long it
# took: some forty minutes. What is in the file already is not played again.
HOSTS ?= build/hosts.json
test-hosts:
	$(MAKE) test-cluster CLUSTER=tests/cluster/test_hosts.py
	$(BIN)/python benchmarks/hosts.py --out $(HOSTS)

# Attacks, those of make test and those that take longer. Some have bounds in time: on a machine that
# does other things too, NIP_SLOWEST_HEALTH_S is how long /health may take (0.1 s).
test-security: install
	$(BIN)/python -m pytest -m "security or not security" tests/security

# PostgreSQL, Prefect and a worker as processes; see `nip up --help` for options.
up: install
	$(BIN)/nip up $(UP)

# The declared studies, each for at most an hour; another start goes on where this one stopped
# (docs/study.md, docs/soundness.md). One thread for each of two runs at a time: two cores.
STUDY_JOBS ?= 2
define PLAY_STUDY
	$(BIN)/nip declare deployments/plans/$@.yaml
	@OMP_NUM_THREADS=1 timeout 57m $(BIN)/nip sweep deployments/sweeps/$@.yaml --jobs $(STUDY_JOBS); \
	status=$$?; \
	if [ $$status = 124 ]; then echo "an hour is over; make $@ goes on"; else exit $$status; fi
endef

study: install
	$(PLAY_STUDY)

soundness: install
	$(PLAY_STUDY)

unanswered: install
	$(PLAY_STUDY)

unanswered_smollm2: install
	$(PLAY_STUDY)

bench: install
	$(BIN)/python benchmarks/dataset.py --out docs/results/dataset.json
	$(BIN)/python benchmarks/resume.py --out docs/results/resume.json
	$(BIN)/python benchmarks/solutions.py --out docs/results/solutions.json
	$(BIN)/python benchmarks/interval_coverage.py --out docs/results/interval_coverage.json
	$(BIN)/python benchmarks/arm_coverage.py --out docs/results/arm_coverage.json
	$(BIN)/python benchmarks/prefect_share.py --out docs/results/prefect_share.json
	$(BIN)/python benchmarks/embedded_engine.py --http
	NIP_VLLM=$(abspath $(VLLM))/bin/vllm $(BIN)/python benchmarks/pass_through.py
	$(BIN)/python benchmarks/view.py --out docs/results/view.json

# Other projects in environments of their own, and nip, take turns; PEERS=DIR says where they are.
# Processor seconds of each kind of work, beside those of the commit before; ends with 1 where one is slower.
bench-check: install
	$(BIN)/python benchmarks/speed_bar.py --check $(SPEED) $(if $(OUT),--out $(OUT))
	$(BIN)/python benchmarks/mark_old.py --check

side-by-side: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" PEERS=$(abspath $(PEERS)) scripts/build_peers.sh
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_vllm_cpu.sh $(VLLM)
	$(BIN)/nip models add smollm2
	NIP_VLLM=$(abspath $(VLLM))/bin/vllm PEERS=$(abspath $(PEERS)) \
		$(BIN)/python benchmarks/side_by_side.py --out docs/results/side_by_side.json

# Tinker's API by nip and by SkyRL, asked by the same client.
tinker-peers: install
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" scripts/build_tinker.sh $(TINKER)
	PYTHON=$(PYTHON) PIP_OPTIONS="$(PIP_OPTIONS)" PEERS=$(abspath $(PEERS)) scripts/build_peers.sh skyrl
	TINKER_ENV=$(abspath $(TINKER)) PEERS=$(abspath $(PEERS)) \
		$(BIN)/python benchmarks/tinker_peers.py --out docs/results/tinker_peers.json

clean:
	rm -rf build *.egg-info .pytest_cache .mypy_cache .ruff_cache .coverage*
