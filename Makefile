# The front door of the repository: `make` lists all targets. Requires Go, git, and a POSIX shell; every other tool
# is built from a pinned version into the go command's cache on first use.

SHELL := /bin/sh
.SUFFIXES:
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help

# What is compiled depends on the source alone, not on where it is, so that every clone and every target share the build cache. That
# takes cgo to be off everywhere, too, but for the race detector.
export GOFLAGS := $(strip $(filter-out -trimpath -buildvcs=false,$(GOFLAGS)) -trimpath -buildvcs=false)
NOCGO := CGO_ENABLED=0

# Settings that a caller may change: make demo ARGS=--verbose, make lint DIRS=services/assigner
ARGS      ?=
DIRS      ?= $(MODULES)
BIN       ?= bin
# Packages tested concurrently. Several of them start an API server, which needs a core of its own.
PARALLEL  ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); if [ "$$n" -gt 4 ]; then echo 4; else echo "$$n"; fi)
TIMEOUT   ?= 20m

# The prefix of all module paths.
PATHS      := github.com/clusterring/clusterring
MODULES    = $(shell sed -n 's|^[[:space:]]*\./||p' go.work)
TOOLMODULES = tools/controlplane
# Each developer tool has a file like a go.mod, for the go command's -modfile.
PINS        = $(wildcard hack/tools/*.mod)
# The standard library of earlier releases has known vulnerabilities. Only builds of this repository use this version: whoever imports
# a module chooses their own.
TOOLCHAIN  := go1.26.8
# The modules that are tagged in each release: those that others import or install, and the modules that these require.
# tools/outside reads this line.
RELEASED   := pkg proto services/internal services/leasemonitor services/rebalancer services/embedded tools/testkit tools/kubectl-ring
SERVICES  := leasemonitor assigner rebalancer ringquery
# Operators of others that tools/operators runs as shards.
OPERATORS := jobset trust-manager client-go
# What the demo runs.
DEMO      := $(SERVICES) example demo kubectl-ring grpcurl
VERSION    = $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo unknown)
# Packages with a version variable. Programs without such a package ignore it.
VERSIONED  = services/internal/kit tools/kubectl-ring/internal/command tools/load/internal/command
GOBUILD    = $(NOCGO) go build -ldflags "-s -w $(VERSIONED:%=-X $(PATHS)/%.Version=$(VERSION))"
# The race detector needs a C compiler; without one the tests still run.
RACE       = $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
packages   = $(patsubst %,./%/...,$(1))
# What others run or import: the services, their libraries, the example, and the kubectl plugin. The go command finds them from
# any directory of the workspace.
SHIPPED    = $(patsubst %,$(PATHS)/%/...,$(filter-out tools tools/testkit,$(MODULES)))

# Both print a path to standard output, and print progress to standard error while they build.
CONTROLPLANE := GOWORK=off go run -C tools/controlplane .
TOOL         := $(CURDIR)/hack/tool

step = @printf '==> %s\n' '$(1)'

##@ Start here

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { print "Usage: make TARGET [NAME=VALUE...]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9%-]+:.*## / { split($$0, part, ":.*## "); printf "  %-17s %s\n", part[1], part[2] }' $(MAKEFILE_LIST)

.PHONY: demo
demo: $(DEMO:%=$(BIN)/%) ## Run everything on this machine, demonstrate each guarantee, and clean up
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo run --bin-dir $(BIN) --assets "$$assets" $(ARGS)

.PHONY: demo-modes
demo-modes: $(DEMO:%=$(BIN)/%) $(OPERATORS:%=$(BIN)/%) ## Run other ways to share objects, and verify each (ARGS=standby runs one; docs/modes.md lists them)
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo modes --bin-dir $(BIN) --assets "$$assets" $(ARGS)

.PHONY: up
up: build ## Run everything on this machine until Ctrl-C, and print how to use it
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo up --bin-dir $(BIN) --assets "$$assets" $(ARGS)

.PHONY: down
down: $(BIN)/demo ## Stop what `make up` or a killed demo has left running
	@exec $(BIN)/demo down $(ARGS)

# Programs that tests build are those of make build, without cgo.
.PHONY: test
test: go-present ## Run all tests with the race detector against a real API server
	$(call step,control plane and Helm for the tests)
	@$(CONTROLPLANE) >/dev/null && $(TOOL) helm >/dev/null
	$(call step,tests of the tools outside the workspace)
	@cd tools/controlplane && GOWORK=off go test -count=1 .
	$(call step,tests of every module$(if $(RACE),, - WITHOUT the race detector: no C compiler); each package is named when it is done)
	@assets=$$($(CONTROLPLANE)) && gotestsum=$$($(TOOL) gotestsum) && \
		KUBEBUILDER_ASSETS="$$assets" exec "$$gotestsum" --format pkgname --format-hide-empty-pkg -- \
		$(RACE) -tags invariants -exec 'env $(NOCGO)' -count=1 -p $(PARALLEL) -timeout $(TIMEOUT) $(ARGS) $(call packages,$(DIRS))

##@ Build

.PHONY: build
build: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/demo $(BIN)/load $(BIN)/kubectl-ring $(BIN)/grpcurl $(BIN)/kubectl ## Build the services, the example, the demo, the load tool, the kubectl plugin, grpcurl, and kubectl into bin/

# The go command determines what is out of date.
.PHONY: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/guide $(BIN)/demo $(BIN)/load $(BIN)/shards $(BIN)/kubectl-ring $(BIN)/grpcurl $(BIN)/kubectl
$(SERVICES:%=$(BIN)/%): $(BIN)/%: go-present
	$(call step,build $@)
	@$(GOBUILD) -o $@ ./services/$*/cmd/$*

$(BIN)/example $(BIN)/guide $(BIN)/demo $(BIN)/load $(BIN)/shards: $(BIN)/%: go-present
	$(call step,build $@)
	@$(GOBUILD) -o $@ ./$(firstword $(wildcard tools/*/cmd/$*) tools/$*)

# Their CustomResourceDefinitions are in their modules.
.PHONY: $(OPERATORS:%=$(BIN)/%)
$(BIN)/jobset: CRD := sigs.k8s.io/jobset config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml
$(BIN)/trust-manager: CRD := github.com/cert-manager/trust-manager deploy/crds/trust.cert-manager.io_bundles.yaml
$(OPERATORS:%=$(BIN)/%): $(BIN)/%: go-present
	$(call step,build $@)
	@mkdir -p $(BIN) && export $(NOCGO) && go build -o $@ ./tools/operators/cmd/$* && \
		$(if $(CRD),cp -f "$$(go list -m -f '{{.Dir}}' $(firstword $(CRD)))/$(lastword $(CRD))" $@.crd.yaml && chmod u+w $@.crd.yaml,:)

# With PATH=$PWD/bin:$PATH, `kubectl ring` works and completes its arguments.
$(BIN)/kubectl-ring: go-present
	$(call step,build $@)
	@$(GOBUILD) -o $@ ./tools/kubectl-ring && $@ completion >$(BIN)/kubectl_complete-ring && chmod +x $(BIN)/kubectl_complete-ring

$(BIN)/grpcurl: go-present
	$(call step,build $@)
	@path=$$($(TOOL) grpcurl) && mkdir -p $(BIN) && cp -f "$$path" $@

# The demo needs no kubectl, so that its first run builds less.
$(BIN)/kubectl: go-present
	$(call step,build $@)
	@dir=$$($(CONTROLPLANE) kubectl) && mkdir -p $(BIN) && cp -f "$$dir/kubectl" $@

.PHONY: control-plane
control-plane: go-present ## Build etcd, kube-apiserver, and kube-controller-manager, and print their path
	@$(CONTROLPLANE)

.PHONY: tool-%
tool-%: go-present ## Build a pinned developer tool and print its path (make tool-list lists them)
	@$(TOOL) $*

.PHONY: tool-list
tool-list: go-present
	@$(TOOL) -list

.PHONY: clean
clean: ## Remove everything that was built here (the user's cache stays)
	rm -rf $(BIN) dist

##@ Change

.PHONY: generate
generate: generate-api generate-proto generate-chart ## Generate deep copies, CRDs, gRPC code, and the Helm chart

.PHONY: generate-api
generate-api: go-present
	$(call step,generate deep copies and CRDs)
	@controllergen=$$($(TOOL) controller-gen) && \
		(cd pkg && "$$controllergen" object crd paths=./apis/... output:crd:dir=../deploy/base/crd) && \
		crd=deploy/base/crd/sharding.timebertt.dev_clusterrings.yaml && \
		awk -f pkg/apis/labelselector.awk "$$crd" >"$$crd.new" && mv "$$crd.new" "$$crd" && \
		(cd tools && "$$controllergen" object crd paths=./example/... output:crd:dir=../deploy/example/crd)

.PHONY: generate-proto
generate-proto: go-present
	$(call step,generate gRPC code)
	@tools=$$($(TOOL) buf protoc-gen-go protoc-gen-go-grpc) && \
		for tool in $$tools; do PATH="$$(dirname "$$tool"):$$PATH"; done && cd proto && $(call compatible,buf) && buf generate && \
		buf build --exclude-source-info -o 'api.json#format=json'

# The chart contains the CRDs, so these come first.
.PHONY: generate-chart
generate-chart: generate-api
	$(call step,generate the Helm chart)
	@$(NOCGO) go run ./tools/chart/cmd/chart

.PHONY: docs
docs: go-present ## Run the commands in docs/queries.md and record their output
	@assets=$$($(CONTROLPLANE)) && KUBEBUILDER_ASSETS="$$assets" $(NOCGO) exec go test -C tools/demo/internal/command -count=1 -run '^TestQueries$$' $(ARGS) . -update

.PHONY: fmt
fmt: go-present ## Format the code and order the imports
	$(call step,format)
	@lint=$$($(TOOL) golangci-lint) && "$$lint" fmt && proto=$$($(TOOL) buf) && cd proto && "$$proto" format -w

.PHONY: tidy
tidy: go-present ## Update every go.mod, with one version of each dependency for all modules
	$(call step,one version of each dependency)
	@go work sync
	@for module in $(MODULES) $(TOOLMODULES); do \
		printf '==> tidy %s\n' "$$module"; (cd "$$module" && $(standalone) && go mod tidy && $(standalone_keep)) || exit 1; done
	@for pins in $(PINS); do \
		printf '==> tidy %s\n' "$$pins"; ($(pinned) && go mod tidy && cp go.mod "$$file.mod" && cp go.sum "$$file.sum") || exit 1; done

.PHONY: fix
fix: fix-versions fix-tidy fix-generate fix-proto fix-lint fix-format ## Repair everything that `make verify` finds and that can be repaired automatically

##@ Check

VERIFY := generate proto format tidy versions build lint walls licenses vulnerabilities

.PHONY: verify
verify: go-present ## Run every check below, continue after failures, and list the failures at the end
	@failed=; for check in $(VERIFY); do \
		$(MAKE) verify-$$check || failed="$$failed verify-$$check"; done; \
	if [ -n "$$failed" ]; then printf '==> FAILED:%s\n' "$$failed" >&2; exit 1; fi; \
	printf '==> verified: %s\n' '$(VERIFY)'

.PHONY: ci
ci: go-present ## Everything that a change must pass, in an hour
	@exec hack/ci

.PHONY: nightly
nightly: go-present ## What takes too long for each change; hours
	@exec hack/nightly

.PHONY: lint
lint: verify-lint ## Check the code against .golangci.yml (DIRS=... limits the directories)

.PHONY: size
size: ## Print how large the repository is beside the limits it keeps; fails while one is exceeded
	@hack/size

.PHONY: go-present
go-present:
	@command -v go >/dev/null || { echo 'error: go not found: install Go from https://go.dev/dl/ and add it to PATH' >&2; exit 1; }

# $(standalone) limits the go command to the module of this directory, without the workspace. A module that others install has no
# replace directives, because `go install` refuses them. For such a module, the go command uses a copy of its go.mod with
# replace directives. $(standalone_keep) copies back what the go command has changed in that copy.
define standalone
{ export GOWORK=off; if ! grep -q '^module .*/tools/kubectl-ring$$' go.mod; then alone=; else \
	alone=$$(mktemp -d) && trap 'rm -rf "$$alone"' EXIT && cp go.mod go.sum "$$alone" && \
	go mod edit $(foreach dir,$(RELEASED),-replace=$(PATHS)/$(dir)=$(CURDIR)/$(dir)) "$$alone/go.mod" && export GOFLAGS="$(GOFLAGS) -modfile=$$alone/go.mod"; fi; }
endef
# $(pinned) goes to an empty module whose go.mod is the file $$pins, so that the go command sees what that pins and nothing else.
define pinned
{ export GOWORK=off; file=$(CURDIR)/$${pins%.mod}; copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && \
	cp "$$file.mod" "$$copy/go.mod" && cp "$$file.sum" "$$copy/go.sum" && cd "$$copy"; }
endef
standalone_keep = if [ -n "$$alone" ]; then go mod edit $(foreach dir,$(RELEASED),-dropreplace=$(PATHS)/$(dir)) "$$alone/go.mod" && \
	cp "$$alone/go.mod" "$$alone/go.sum" .; fi

# $(call compatible,BUF) checks, in proto/, that clients of the last generated API continue to work.
compatible = { [ ! -e api.json ] || $(1) breaking --against 'api.json\#format=json' || { \
	echo 'error: clients would break: add to the API instead of changing it; if it cannot have any users yet, remove proto/api.json first' >&2; exit 1; }; }

include $(patsubst %,hack/%.mk,verify e2e measure images release)
