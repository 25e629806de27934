# The front door of the repository: `make` lists all targets. Requires Go, git, and a POSIX shell; every other tool
# is built from a pinned version into the user's cache on first use.

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
FUZZTIME  ?= 10s
BENCH     ?= .
COUNT     ?= 6
SCALE     ?= full
OUT       ?= dist/load
BENCHTIME ?= 0.3s
# What runs for each object, admission request, or change of shards.
BENCHDIRS ?= $(addprefix services/internal/,key hashring membership plan) services/internal/admission services/assigner/webhook
BASELINE  ?= docs/benchmarks.txt
# Packages tested concurrently. Several of them start an API server, which needs a core of its own.
PARALLEL  ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); if [ "$$n" -gt 4 ]; then echo 4; else echo "$$n"; fi)
TIMEOUT   ?= 20m

# The prefix of all module paths.
PATHS      := github.com/clusterring/clusterring
MODULES    = $(shell sed -n 's|^[[:space:]]*\./||p' go.work)
TOOLMODULES = tools/dev tools/controlplane tools/operators
# Each developer tool has a file like a go.mod, for the go command's -modfile.
PINS        = $(wildcard tools/dev/pins/*.mod)
# The standard library of earlier releases has known vulnerabilities. Only builds of this repository use this version: whoever imports
# a module chooses their own.
TOOLCHAIN  := go1.26.8
# The modules that are tagged in each release: those that others import or install, and the modules that these require.
# tools/outside reads this line.
RELEASED   := pkg proto services/internal services/leasemonitor services/rebalancer services/embedded tools tools/example tools/kubectl-ring
SERVICES  := leasemonitor assigner rebalancer ringquery
# Operators of others that tools/operators runs as shards.
OPERATORS := jobset trust-manager client-go
# What the demo runs.
DEMO      := $(SERVICES) example demo kubectl-ring grpcurl
VERSION    = $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo unknown)
# Images: their destination (default: dist/images, as an OCI layout), their platforms, and the kustomization that dist/install
# uses them in. The base image is that of .ko.yaml, or $KO_DEFAULTBASEIMAGE.
IMAGE_REPO ?=
PLATFORMS  ?= linux/amd64,linux/arm64
OVERLAY    ?= deploy/base
# Directory of the result. It is two directories deep.
INSTALL    ?= dist/install
# The commit that make e2e upgrades from.
PREVIOUS   ?= HEAD~1
# Packages of additional programs to build images of.
MORE_IMAGES ?=
# The private key that signs images: a file, or a reference to a KMS, as cosign names it. $$COSIGN_PASSWORD decrypts a file.
COSIGN_KEY ?=
# What make release makes: kubectl plugins for these platforms, and URLs below this one. DRY_RUN=1 makes everything but the tags.
PLUGIN_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
DOWNLOADS ?= https://$(PATHS)/releases/download
DRY_RUN   ?=
# The target that builds the images of a release, and where it writes their SBOMs. Tests have SBOMs without images.
RELEASE_IMAGES ?= images
RELEASE_SBOMS  ?= dist/install/sbom
# The licenses that what we ship may have.
LICENSES   := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT
# The database of known vulnerabilities: a URL, or file:///path of a copy.
VULNDB     ?= https://vuln.go.dev
# The creation time of images is the time of the commit, so that the same source results in the same image.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
# Packages with a version variable. Programs without such a package ignore it.
VERSIONED  = services/internal/kit tools/kubectl-ring/internal/command tools/load/internal/command
GOBUILD    = $(NOCGO) go build -ldflags "-s -w $(VERSIONED:%=-X $(PATHS)/%.Version=$(VERSION))"
# The race detector needs a C compiler; without one the tests still run.
RACE       = $(if $(filter 1,$(shell go env CGO_ENABLED)),-race)
packages   = $(patsubst %,./%/...,$(1))
# What others run or import: the services, their libraries, the example, and the kubectl plugin. The go command finds them from
# any directory of the workspace.
SHIPPED    = $(patsubst %,$(PATHS)/%/...,$(filter-out tools,$(MODULES)))

# Both print a path to standard output, and print progress to standard error while they build.
CONTROLPLANE := GOWORK=off go run -C tools/controlplane .
TOOL         := GOWORK=off go run -C tools/dev .

step = @printf '==> %s\n' '$(1)'

##@ Start here

.PHONY: help
help: ## Show this list
	@awk 'BEGIN { print "Usage: make TARGET [NAME=VALUE...]" } \
		/^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9%-]+:.*## / { split($$0, part, ":.*## "); printf "  %-17s %s\n", part[1], part[2] }' $(firstword $(MAKEFILE_LIST))

.PHONY: demo
demo: $(DEMO:%=$(BIN)/%) ## Run everything on this machine, demonstrate each guarantee, and clean up
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo run --bin-dir $(BIN) --assets "$$assets" $(ARGS)

.PHONY: demo-modes
demo-modes: $(DEMO:%=$(BIN)/%) $(BIN)/guide $(OPERATORS:%=$(BIN)/%) ## Run the other ways to share objects, and verify each (ARGS=standby runs one; docs/modes.md lists them)
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo modes --bin-dir $(BIN) --assets "$$assets" $(ARGS)

.PHONY: up
up: build ## Start everything on this machine, leave it running, and print how to use it
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
	@cd tools/dev && GOWORK=off go test -count=1 ./...
	@cd tools/controlplane && GOWORK=off go test -count=1 .
	$(call step,tests of every module$(if $(RACE),, - WITHOUT the race detector: no C compiler); each package is named when it is done)
	@assets=$$($(CONTROLPLANE)) && gotestsum=$$($(TOOL) gotestsum) && \
		KUBEBUILDER_ASSETS="$$assets" exec "$$gotestsum" --format pkgname --format-hide-empty-pkg -- \
		$(RACE) -tags invariants -exec 'env $(NOCGO)' -count=1 -p $(PARALLEL) -timeout $(TIMEOUT) $(ARGS) $(call packages,$(DIRS))

##@ Build

.PHONY: build
build: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/demo $(BIN)/load $(BIN)/kubectl-ring $(BIN)/grpcurl $(BIN)/kubectl ## Build the services, the example, the demo, the load tool, the kubectl plugin, grpcurl, and kubectl into bin/

# The go command determines what is out of date.
.PHONY: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/guide $(BIN)/demo $(BIN)/load $(BIN)/kubectl-ring $(BIN)/grpcurl $(BIN)/kubectl
$(SERVICES:%=$(BIN)/%): $(BIN)/%: go-present
	$(call step,build $@)
	@$(GOBUILD) -o $@ ./services/$*/cmd/$*

$(BIN)/example $(BIN)/guide $(BIN)/demo $(BIN)/load: $(BIN)/%: go-present
	$(call step,build $@)
	@$(GOBUILD) -o $@ ./$(firstword $(wildcard tools/*/cmd/$*) tools/$*)

# Their CustomResourceDefinitions are in their modules.
.PHONY: $(OPERATORS:%=$(BIN)/%)
$(BIN)/jobset: CRD := sigs.k8s.io/jobset config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml
$(BIN)/trust-manager: CRD := github.com/cert-manager/trust-manager deploy/crds/trust.cert-manager.io_bundles.yaml
$(OPERATORS:%=$(BIN)/%): $(BIN)/%: go-present
	$(call step,build $@)
	@mkdir -p $(BIN) && export GOWORK=off $(NOCGO) && go build -C tools/operators -o $(abspath $@) ./cmd/$* && \
		$(if $(CRD),cp -f "$$(go list -C tools/operators -m -f '{{.Dir}}' $(firstword $(CRD)))/$(lastword $(CRD))" $@.crd.yaml && chmod u+w $@.crd.yaml,:)

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

.PHONY: images
images: go-present ## Build the images; to push them: make images IMAGE_REPO=registry.example.com/clusterring [COSIGN_KEY=...] [OVERLAY=deploy/overlays/...]
	$(call step,images$(if $(IMAGE_REPO), to $(IMAGE_REPO), into dist/images))
	@[ -z '$(COSIGN_KEY)' ] || [ -n '$(IMAGE_REPO)' ] || { \
		echo 'error: signatures are stored beside the images: with COSIGN_KEY, set IMAGE_REPO to a registry' >&2; exit 1; }
	@mkdir -p $(INSTALL) && rm -rf $(INSTALL)/images.txt $(INSTALL)/sbom && ko=$$($(TOOL) ko) && \
		KO_DOCKER_REPO=$(or $(IMAGE_REPO),clusterring) SOURCE_DATE_EPOCH=$(SOURCE_DATE_EPOCH) "$$ko" build --base-import-paths \
			--platform $(PLATFORMS) --tags "$$(printf '%s' '$(VERSION)' | tr -c 'A-Za-z0-9_.-' -)" --image-refs $(INSTALL)/images.txt --sbom-dir $(INSTALL)/sbom \
			--ldflags=-s --ldflags=-w $(VERSIONED:%=--ldflags='-X $(PATHS)/%.Version=$(VERSION)') \
			$(if $(IMAGE_REPO),,--push=false --oci-layout-path dist/images) \
			$(foreach service,$(SERVICES),./services/$(service)/cmd/$(service)) ./tools/example/cmd/example $(MORE_IMAGES)
	$(if $(COSIGN_KEY),$(sign),@echo 'Not signed. To sign the images and their SBOMs: make images IMAGE_REPO=... COSIGN_KEY=...')
	@[ -n '$(IMAGE_REPO)' ] || { echo 'To push them: make images IMAGE_REPO=...'; exit 0; }; \
		images=$$(sed -E -e 's|@(.*)$$| digest: \1|' -e t -e 's|:([^:/]*)$$| newTag: \1|' $(INSTALL)/images.txt | while read -r image key value; do \
			image=$${image%:*}; printf -- '- name: clusterring/%s\n  newName: %s\n  %s "%s"\n' "$${image##*/}" "$$image" "$$key" "$$value"; done) && \
		for what in $(INSTALL):$(OVERLAY) $(dir $(INSTALL))example:deploy/example; do \
			mkdir -p "$${what%:*}" && printf '# Made by make images.\n%s\n%s\nresources:\n- ../../%s\nimages:\n%s\n' \
				'apiVersion: kustomize.config.k8s.io/v1beta1' 'kind: Kustomization' "$${what#*:}" "$$images" >"$${what%:*}/kustomization.yaml"; done && \
		for service in $(SERVICES); do sed -nE -e "s|^(.*/$$service)(:[^:/@]*)?@(.*)$$|$$service: {image: {repository: \"\1\", digest: \"\3\"}}|p" \
			-e "s|^(.*/$$service):([^:/@]*)$$|$$service: {image: {repository: \"\1\", tag: \"\2\"}}|p" $(INSTALL)/images.txt; done >$(INSTALL)/values.yaml && \
		echo 'To install them: kubectl apply -k $(INSTALL), or helm install ... --values $(INSTALL)/values.yaml (and the example, after that: kubectl apply -k $(dir $(INSTALL))example)'

# Defines with, which runs cosign with the key. Two empty files tell cosign to use no service of sigstore: no transparency log learns the
# name of an image, and no network is needed but the registry.
cosign-offline = cosign=$$($(TOOL) cosign) && "$$cosign" signing-config create --out dist/signing-config.json && \
	"$$cosign" trusted-root create --out dist/trusted-root.json && \
	with() { "$$cosign" "$$@" --yes --key '$(COSIGN_KEY)' --signing-config dist/signing-config.json --trusted-root dist/trusted-root.json; }

# Signs each image, all its platforms, and the SBOM of each, by digest.
define sign
	$(call step,sign with $(COSIGN_KEY))
	@$(cosign-offline) && \
		while read -r image <&3; do \
			case $$image in *@sha256:*) ;; *) echo "error: $$image is in no registry, so it cannot be signed" >&2; exit 1;; esac; \
			name=$${image##*/}; name=$${name%%[:@]*}; signed=; with sign --recursive "$$image" || exit; \
			for sbom in $(INSTALL)/sbom/"$$name"-*.spdx.json; do \
				digest=$$(sed -n 's/^ *"name": *"sbom-\(sha256:[0-9a-f]*\)".*/\1/p' "$$sbom"); \
				with attest --type spdxjson --predicate "$$sbom" "$${image%@*}@$$digest" || exit; signed="$$signed $$digest"; done; \
			case $$signed in *"$${image#*@}"*) ;; *) echo "error: $(INSTALL)/sbom contains no SBOM of $$image" >&2; exit 1;; esac; \
		done 3<$(INSTALL)/images.txt
endef

.PHONY: base-image
base-image: go-present ## Pin the current base image, by digest, in .ko.yaml
	@crane=$$($(TOOL) crane) && tag=$$(sed -n 's/^defaultBaseImage: \([^@]*\).*/\1/p' .ko.yaml) && digest=$$("$$crane" digest "$$tag") && \
		sed "s|^defaultBaseImage: .*|defaultBaseImage: $$tag@$$digest|" .ko.yaml >.ko.yaml.new && mv .ko.yaml.new .ko.yaml && \
		echo "The base image is $$tag@$$digest."

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

##@ Release

# A tag of a module whose path has no /v2 must be v0 or v1. VERSION tags HEAD. The tags of modules are of a commit that differs from it in
# go.mod files alone, if at all, and has its date: whoever releases the same commit gets the same files.
.PHONY: release
release: TREE := $(CURDIR)/dist/release.tree
release: TAGS := $(VERSION) $(RELEASED:%=%/$(VERSION))
release: go-present ## Make the files of a release in dist/release, and tag it: make release VERSION=v1.2.3 [IMAGE_REPO=... COSIGN_KEY=...] [DRY_RUN=1: without tags]
	$(call step,check that $(VERSION) can be released)
	@printf '%s\n' '$(VERSION)' | grep -Eq '^v[01](\.(0|[1-9][0-9]*)){2}(-[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?$$' || { \
		echo 'error: $(VERSION) is not a version such as v0.1.0 or v1.2.3-rc.1: make release VERSION=v1.2.3' >&2; exit 1; }
	@[ -z "$$(git status --porcelain)" ] || { echo 'error: commit everything first' >&2; exit 1; }
	@$(notes) | grep -q '[^[:space:]]' || { echo 'error: CHANGELOG.md has no section "## [$(VERSION:v%=%)] - DATE"' >&2; exit 1; }
	@for tag in $(TAGS); do \
		! git rev-parse --quiet --verify "refs/tags/$$tag" >/dev/null || { echo "error: tag $$tag exists" >&2; exit 1; }; done
	@tidy() { cd '$(CURDIR)'; git worktree remove --force '$(TREE)' 2>/dev/null; rm -rf '$(TREE)'; git worktree prune; }; \
		tidy; trap tidy EXIT; trap 'exit 130' INT TERM; head=$$(git rev-parse HEAD) && \
		git worktree add --quiet --detach '$(TREE)' && cd '$(TREE)' && \
		for module in $(MODULES); do \
			sed -E 's|($(PATHS)/[^ ]+) v[0-9][^ ]*|\1 $(VERSION)|' $$module/go.mod >go.mod.new && mv go.mod.new $$module/go.mod || exit 1; done && \
		$(MAKE) release-files SOURCE_DATE_EPOCH='$(SOURCE_DATE_EPOCH)' COSIGN_KEY='$(or $(realpath $(COSIGN_KEY)),$(COSIGN_KEY))' && \
		rm -rf '$(CURDIR)/dist/release' && mv dist/release '$(CURDIR)/dist/release' && \
		if [ -n '$(DRY_RUN)' ]; then echo 'The files are in dist/release. DRY_RUN: there are no tags.'; exit 0; fi && \
		export GIT_AUTHOR_DATE='$(SOURCE_DATE_EPOCH) +0000' GIT_COMMITTER_DATE='$(SOURCE_DATE_EPOCH) +0000' && \
		{ git diff --quiet -- $(MODULES:%=%/go.mod) || git commit --quiet --message 'release: $(VERSION)' -- $(MODULES:%=%/go.mod); } && \
		git tag --annotate --message 'ClusterRing $(VERSION)' $(VERSION) "$$head" && \
		for module in $(RELEASED); do git tag --annotate --message "$$module $(VERSION)" "$$module/$(VERSION)" || exit 1; done && \
		printf '%s\n' 'The files are in dist/release. To publish them, upload them to the release of tag $(VERSION), after:' \
			'git push origin $(TAGS:%=refs/tags/%)'

# The section of CHANGELOG.md about the version.
notes = awk -v 'section=\#\# [$(VERSION:v%=%)] - ' '/^\#\# / { on = index($$0, section) == 1; next } /^\[[^]]*\]: / { next } on' CHANGELOG.md

.PHONY: release-files
release-files: go-present
	@rm -rf dist/release dist/plugins dist/images && mkdir -p dist/release && $(notes) >dist/release/notes.md
	$(call step,the kubectl plugin for $(PLUGIN_PLATFORMS))
	@for platform in $(PLUGIN_PLATFORMS); do \
		export GOOS=$${platform%/*} GOARCH=$${platform#*/} && dir=dist/plugins/$${GOOS}_$$GOARCH && \
		$(GOBUILD) -o "$$dir/kubectl-ring$$([ "$$GOOS" != windows ] || echo .exe)" ./tools/kubectl-ring || exit 1; done
	$(if $(RELEASE_IMAGES),@$(MAKE) $(RELEASE_IMAGES) COSIGN_KEY='$(if $(IMAGE_REPO),$(COSIGN_KEY))')
	$(call step,dist/release)
	@[ ! -d dist/images ] || mv dist/images dist/release/images
	@$(NOCGO) go run ./tools/release/cmd/release -root . -version $(VERSION) -time $(SOURCE_DATE_EPOCH) -plugins dist/plugins -images '$(RELEASE_SBOMS)' \
		-repo '$(or $(IMAGE_REPO),clusterring)' -layout "$$(ls -d dist/release/images 2>/dev/null)" -downloads '$(DOWNLOADS)' -out dist/release
	$(if $(COSIGN_KEY),@$(cosign-offline) && with sign-blob --bundle dist/release/checksums.txt.sigstore.json dist/release/checksums.txt)

# What differs between two machines: directories, times of files, and what was built before.
.PHONY: test-release
test-release: go-present ## Make the files of a release twice, images included, and verify that they are the same (PLATFORMS=linux/amd64 takes less)
	@rm -rf dist/twice && for n in first second; do \
		git clone --quiet --shared . "dist/twice/$$n" && $(MAKE) -C "dist/twice/$$n" release-files VERSION='$(VERSION)' && sleep 1 || exit 1; done && \
		cd dist/twice && cat first/dist/release/checksums.txt && diff -r first/dist/release second/dist/release && \
		echo 'Both are the same, bit by bit.' && cd .. && rm -rf twice

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
		(cd tools/example && "$$controllergen" object crd paths=./... output:crd:dir=../../deploy/example/crd)

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
docs: build ## Run the commands in docs/queries.md and record their output
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/demo docs --bin-dir $(BIN) --assets "$$assets" $(ARGS) docs/queries.md

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

.PHONY: lint
lint: verify-lint ## Check the code against .golangci.yml (DIRS=... limits the directories)

.PHONY: verify-generate fix-generate
verify-generate: go-present ## Generated code and CRDs match the types, and the Helm chart matches deploy/ (fix-generate)
	$(call unchanged,generate)
fix-generate: generate

.PHONY: verify-proto fix-proto
verify-proto: go-present ## The protobuf API follows its style, and breaks no client of the API in proto/api.json (fix-proto)
	$(call step,check the protobuf API)
	@buf=$$($(TOOL) buf) && cd proto && "$$buf" lint && "$$buf" format --diff --exit-code && $(call compatible,"$$buf")
fix-proto: fmt generate-proto

.PHONY: verify-format fix-format
verify-format: go-present ## Code is formatted (fix-format), and no file has the marks of a merge conflict
	$(call step,check the format)
	@if git grep -nE '^(<{7}|>{7}) '; then echo 'error: resolve the conflicts above' >&2; exit 1; fi
	@lint=$$($(TOOL) golangci-lint) && { "$$lint" fmt --diff || { echo 'error: not formatted: run make fix-format' >&2; exit 1; }; }
fix-format: fmt

.PHONY: verify-tidy fix-tidy
verify-tidy: go-present ## Every go.mod lists exactly what its module needs (fix-tidy)
	$(call step,check go.mod files)
	@status=0; for module in $(MODULES) $(TOOLMODULES); do \
		(cd "$$module" && $(standalone) && go mod tidy -diff) || { echo "error: $$module/go.mod: run make fix-tidy"; status=1; }; \
	done; for pins in $(PINS); do \
		($(pinned) && go mod tidy -diff) || { echo "error: $$pins: run make fix-tidy"; status=1; }; \
	done; exit $$status
fix-tidy: tidy

.PHONY: verify-versions fix-versions
verify-versions: go-present ## All modules use one version of each dependency (fix-versions)
	$(call step,check that modules agree on versions)
	@awk '/^(require )?[ \t]*[^ \t]+ v[0-9]/ { \
			sub(/^require /, ""); if (!($$1 in first)) { first[$$1] = $$2; where[$$1] = FILENAME } \
			else if (first[$$1] != $$2) { \
				printf "%s: %s in %s, %s in %s\n", $$1, first[$$1], where[$$1], $$2, FILENAME; bad = 1 } } \
		END { if (bad) print "error: run make fix-versions"; exit bad }' $(MODULES:%=%/go.mod) >&2
	@other=$$(grep -L '^toolchain $(TOOLCHAIN)$$' go.work $(MODULES:%=%/go.mod) $(TOOLMODULES:%=%/go.mod)); \
		if [ -n "$$other" ]; then printf '%s: its toolchain is not $(TOOLCHAIN)\n' $$other >&2; echo 'error: run make fix-versions' >&2; exit 1; fi
	@grep -Eq '^defaultBaseImage: [^ @]+@sha256:[0-9a-f]{64}$$' .ko.yaml || { \
		echo 'error: .ko.yaml does not name its base image by digest: run make base-image' >&2; exit 1; }
fix-versions: tidy
	@go work edit -toolchain=$(TOOLCHAIN) && for module in $(MODULES) $(TOOLMODULES); do go mod edit -toolchain=$(TOOLCHAIN) $$module/go.mod || exit; done

.PHONY: verify-build
verify-build: go-present ## Every module builds and passes go vet on its own, outside the workspace
	@failed=; for module in $(MODULES) tools/dev tools/operators; do \
		printf '==> build and vet %s on its own\n' "$$module"; \
		(cd "$$module" && $(standalone) && export $(NOCGO) && go build ./... && go vet ./...) || failed="$$failed $$module"; done; \
	if [ -n "$$failed" ]; then echo "error: on their own, outside the workspace, these do not build or pass vet:$$failed" >&2; exit 1; fi

.PHONY: verify-lint fix-lint
verify-lint: go-present ## The code complies with .golangci.yml (fix-lint)
	$(call step,lint)
	@lint=$$($(TOOL) golangci-lint) && export $(NOCGO) && "$$lint" run $(call packages,$(DIRS)) && \
		(cd tools/dev && GOWORK=off "$$lint" run --config ../../.golangci.yml ./...) && \
		(cd tools/controlplane && GOWORK=off "$$lint" run --config ../../.golangci.yml .) && \
		(cd tools/operators && GOWORK=off "$$lint" run --config ../../.golangci.yml ./...)
fix-lint: go-present
	$(call step,lint and repair)
	@lint=$$($(TOOL) golangci-lint) && "$$lint" run --fix $(call packages,$(DIRS))

.PHONY: verify-walls
verify-walls: go-present ## Imports follow the rules of the repository, and every package has a package comment
	$(call step,check imports and package comments)
	@cd tools/walls && go test -count=1 .

# go-licenses takes everything for the standard library if it does not know where that is, and passes. Therefore GOROOT, and a check that
# has to fail. kubectl-ring also runs on other systems than the services do.
.PHONY: verify-licenses
verify-licenses: go-present ## All that we ship has a license of the list in the Makefile
	$(call step,check licenses)
	@licenses=$$($(TOOL) go-licenses) && log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && export $(NOCGO) GOROOT="$$(go env GOROOT)" && \
		allow() { "$$licenses" check --ignore $(PATHS) --allowed_licenses "$$@" >"$$log" 2>&1; } && \
		allowed() { GOOS=$$1 GOARCH=amd64; export GOOS GOARCH; shift; allow $(LICENSES) "$$@" || { \
			grep -v -e ' contains non-Go code ' -e '\.s$$' "$$log" >&2; echo "error: a dependency on $$GOOS has a license that is not in LICENSES in the Makefile" >&2; exit 1; }; } && \
		allowed linux $(SHIPPED) && allowed darwin $(PATHS)/tools/kubectl-ring && allowed windows $(PATHS)/tools/kubectl-ring && \
		if allow none $(PATHS)/tools/kubectl-ring; then echo 'error: go-licenses finds no dependencies at all, so its other results mean nothing' >&2; exit 1; fi

# What is imported decides, in a second. Only if that has vulnerabilities, the calls decide, in minutes.
.PHONY: verify-vulnerabilities
verify-vulnerabilities: go-present ## Nothing that we ship calls code with a known vulnerability (VULNDB=file:///path of a copy of the database)
	$(call step,check for known vulnerabilities)
	@vulncheck=$$($(TOOL) govulncheck) && export $(NOCGO) && scan() { "$$vulncheck" -db '$(VULNDB)' -C pkg -scan "$$1" $(SHIPPED); } && \
		if ! "$$vulncheck" -db '$(VULNDB)' -version | grep '^DB updated: '; then \
			echo '==> vulnerabilities NOT CHECKED: the database $(VULNDB) cannot be reached. Unpack a copy of https://vuln.go.dev/vulndb.zip, and set VULNDB=file:///path'; \
			exit 0; fi && \
		{ scan package || { [ $$? = 3 ] && echo '==> is any of that called?' && scan symbol; } || { \
			echo 'error: update what has a vulnerability: go get in its module, then make tidy; a new Go release: TOOLCHAIN in the Makefile' >&2; exit 1; }; }

.PHONY: test-kubernetes
test-kubernetes: go-present ## Run the demo on another version of Kubernetes, which is built first: make test-kubernetes KUBERNETES=v1.30.14
	@[ -n '$(KUBERNETES)' ] || { echo 'error: which version? make test-kubernetes KUBERNETES=v1.30.14' >&2; exit 1; }
	$(call step,control plane of Kubernetes $(KUBERNETES))
	@assets=$$($(CONTROLPLANE)) && tools/controlplane/version.sh '$(KUBERNETES)' '$(CURDIR)/dist/kubernetes/$(KUBERNETES)' "$$assets/etcd"
	@KUBEBUILDER_ASSETS='$(CURDIR)/dist/kubernetes/$(KUBERNETES)' $(MAKE) demo

# Histories depend only on their seed: SEED=7 is the same each time. MUTATIONS is a regular expression for names of faults; . is all.
.PHONY: test-simulation
test-simulation: go-present ## Simulate faults on virtual time, and verify that every object reaches its place (SEEDS=n, starting at FROM=x; SEED=x for one; MUTATIONS=. reintroduces faults)
	$(call step,$(if $(MUTATIONS),simulation of a source with faults; some seed finds each of them,simulation; a history that fails is shrunk and printed))
	@SEEDS=$(or $(SEEDS),1000) FROM=$(FROM) SEED=$(SEED) MUTATIONS='$(MUTATIONS)' $(NOCGO) \
		exec go test -C services/rebalancer/simulation -tags invariants -count=1 -timeout 6h -v -run '^Test$(if $(MUTATIONS),Mutations,Seeds)$$' $(ARGS) .

.PHONY: test-faults
test-faults: go-present ## Kill, freeze, and disconnect every service and shard, one fault per run (FAULTS=all: at every write)
	$(call step,control plane for the fault runs)
	@$(CONTROLPLANE) >/dev/null
	$(call step,fault runs; each reports its result)
	@assets=$$($(CONTROLPLANE)) && \
		KUBEBUILDER_ASSETS="$$assets" FAULTS=$(or $(FAULTS),first) $(NOCGO) exec go test -C tools/faults/sweep -count=1 -timeout $(if $(filter all,$(FAULTS)),2h,45m) $(ARGS)

# Without IMAGE_REPO, the registry is that of ko or skaffold. Images are built only for the machines of the cluster, and signed with a new
# key; the signatures are verified. Three tests run at a time, because three services are disturbed at the same time.
.PHONY: e2e
e2e: go-present $(BIN)/kubectl-ring $(BIN)/grpcurl ## Install everything on the cluster of KUBECONFIG, disturb it under load, upgrade it from PREVIOUS, and remove it (E2E_SCALE=full takes longer)
	@command -v kubectl >/dev/null || { echo 'error: kubectl not found: install it and add it to PATH' >&2; exit 1; }
	@repo='$(or $(IMAGE_REPO),$(KO_DOCKER_REPO),$(SKAFFOLD_DEFAULT_REPO))'; [ -n "$$repo" ] || { \
			echo 'error: no image registry: run make e2e IMAGE_REPO=registry.example.com/clusterring with a registry that the cluster pulls from' >&2; exit 1; } && \
		platforms=$$(kubectl get nodes -o 'jsonpath={range .items[*]}{.status.nodeInfo.operatingSystem}/{.status.nodeInfo.architecture}{"\n"}{end}' | sort -u | paste -s -d , -) && \
		printf '==> the cluster is %s, its machines are %s\n' "$$(kubectl config current-context)" "$$platforms" && \
		$(MAKE) test-signatures IMAGE_REPO="$$repo" PLATFORMS="$$platforms" OVERLAY=tools/e2e/overlay INSTALL=dist/e2e MORE_IMAGES=./tools/e2e/cmd/nodekill && \
		$(MAKE) e2e-jobset IMAGE_REPO="$$repo" PLATFORMS="$$platforms" && \
		$(MAKE) e2e-previous IMAGE_REPO="$$repo" PLATFORMS="$$platforms"
	$(call step,scenarios)
	@E2E_HELM=$$($(TOOL) helm) && export E2E_HELM && { [ ! -d dist/e2e/previous ] || export E2E_PREVIOUS=$(CURDIR)/dist/e2e/previous; } && \
		E2E_INSTALL=$(CURDIR)/dist/e2e E2E_JOBSET=$(CURDIR)/dist/e2e/jobset E2E_ROOT=$(CURDIR) E2E_BIN=$(abspath $(BIN)) \
		E2E_IMAGE_REPO='$(or $(IMAGE_REPO),$(KO_DOCKER_REPO),$(SKAFFOLD_DEFAULT_REPO))' E2E_NODEKILL_IMAGE=$$(sed -n '/\/nodekill[:@]/p' dist/e2e/images.txt) \
		$(NOCGO) exec go test -C tools/e2e/suite -count=1 -parallel 3 -timeout $(if $(filter full,$(E2E_SCALE)),2h,1h) -v $(ARGS)

# Two pairs of keys without a password: one signs the images, the other nothing.
.PHONY: test-signatures
test-signatures: KEYS := dist/keys
test-signatures: go-present ## Push images with signatures, and verify that those of another key and changed images are refused (IMAGE_REPO=any registry)
	@[ -n '$(IMAGE_REPO)' ] || { echo 'error: which registry? make test-signatures IMAGE_REPO=registry.example.com/test' >&2; exit 1; }
	@rm -rf $(KEYS) && mkdir -p $(KEYS) && cosign=$$($(TOOL) cosign) && export COSIGN_PASSWORD= && \
		for key in cosign other; do "$$cosign" generate-key-pair --output-key-prefix $(KEYS)/$$key || exit; done && \
		$(MAKE) images COSIGN_KEY=$(KEYS)/cosign.key
	$(call step,signatures and SBOMs)
	@SIGNED_IMAGES=$(CURDIR)/$(INSTALL)/images.txt SIGNED_KEYS=$(CURDIR)/$(KEYS) && export SIGNED_IMAGES SIGNED_KEYS && \
		SIGNED_COSIGN=$$($(TOOL) cosign) SIGNED_CRANE=$$($(TOOL) crane) && export SIGNED_COSIGN SIGNED_CRANE && \
		$(NOCGO) go test -C tools/e2e/signatures -count=1 -v

# JobSet as docs/adopt.md shards it: its source with the changes of that page, built with our library, and its own manifests with that image. It requests
# less CPU, because small clusters are enough for the test.
.PHONY: e2e-jobset
e2e-jobset: DIR := $(CURDIR)/dist/e2e/jobset
e2e-jobset: go-present
	$(call step,JobSet as docs/adopt.md shards it)
	@rm -rf $(DIR) && mkdir -p $(DIR) && ko=$$($(TOOL) ko) && \
		GOWORK=off go mod download -C tools/operators sigs.k8s.io/jobset && \
		cp -R "$$(GOWORK=off go list -C tools/operators -m -f '{{.Dir}}' sigs.k8s.io/jobset)" $(DIR)/source && chmod -R u+w $(DIR)/source && \
		$(NOCGO) go run ./tools/e2e/cmd/adopt -dir $(DIR)/source && cd $(DIR)/source && export GOWORK=off GOFLAGS="$$GOFLAGS -mod=mod" && \
		go mod edit -replace $(PATHS)/pkg=$(CURDIR)/pkg -require $(PATHS)/pkg@v0.1.0 && go get $(PATHS)/pkg@v0.1.0 && \
		image=$$(KO_CONFIG_PATH=$(CURDIR)/.ko.yaml KO_DOCKER_REPO=$(IMAGE_REPO) "$$ko" build --base-import-paths --platform $(PLATFORMS) --sbom none .) && \
		mv config .. && cd .. && rm -rf source && printf '%s\n' 'resources: [config/default]' 'patches:' '- target: {kind: Deployment}' '  patch: |-' \
			'    - {op: replace, path: /spec/template/spec/containers/0/command, value: [/ko-app/jobset]}' \
			'    - {op: replace, path: /spec/template/spec/containers/0/resources/requests/cpu, value: 20m}' \
			"    - {op: replace, path: /spec/template/spec/containers/0/image, value: '$$image'}" >kustomization.yaml

# The start of the upgrade: images and manifests of PREVIOUS, made by its own Makefile in a temporary worktree.
.PHONY: e2e-previous
e2e-previous: go-present
	@rm -rf dist/e2e/previous; git rev-parse --verify --quiet '$(PREVIOUS)^{commit}' >/dev/null || { \
			echo '==> no upgrade: commit $(PREVIOUS) does not exist here (git fetch --deepen=1 fetches one more commit; PREVIOUS=... selects another one)' >&2; exit 0; }; \
		printf '==> upgrading from: %s\n' "$$(git log -1 --format='%h %s' '$(PREVIOUS)')"; \
		tree=$(CURDIR)/dist/previous; new=dist/e2e/previous.new; \
		tidy() { git worktree remove --force "$$tree" 2>/dev/null; rm -rf "$$tree" "$$new"; git worktree prune; }; \
		tidy; trap tidy EXIT; trap 'exit 130' INT TERM; \
		git worktree add --quiet --detach "$$tree" '$(PREVIOUS)' && \
		$(MAKE) -C "$$tree" images VERSION="$$(git describe --tags --always '$(PREVIOUS)')" MORE_IMAGES= \
			OVERLAY=tools/e2e/overlay INSTALL=dist/e2e && \
		mkdir -p "$$new" && kubectl kustomize "$$tree/deploy/base/crd" >"$$new/crd.yaml" && \
		echo --- >>"$$new/crd.yaml" && kubectl kustomize "$$tree/deploy/example/crd" >>"$$new/crd.yaml" && \
		kubectl kustomize "$$tree/dist/e2e" >"$$new/all.yaml" && mv "$$new" dist/e2e/previous

##@ Measure

.PHONY: bench-load
bench-load: $(SERVICES:%=$(BIN)/%) $(BIN)/example $(BIN)/load ## Measure the cost of sharding, and compare it with the lowest possible cost (SCALE=small takes 10 minutes, full 32, million 42; OUT=directory of the report)
	@assets=$$($(CONTROLPLANE)) && exec $(BIN)/load run --bin-dir $(BIN) --assets "$$assets" --scale $(SCALE) --out $(OUT) $(ARGS)

.PHONY: bench
bench: go-present ## Run the benchmarks of the most frequent operations, in 3 minutes (BENCHDIRS=... BENCH=regexp COUNT=n BENCHTIME=0.3s)
	$(benchmarks)
	@benchstat=$$($(TOOL) benchstat) && "$$benchstat" dist/bench.txt

# Times are comparable only on the same machine, allocations on any machine.
.PHONY: bench-compare
bench-compare: go-present ## Run the benchmarks and compare the results with BASELINE (default: docs/benchmarks.txt)
	@[ -f '$(BASELINE)' ] || { echo 'error: $(BASELINE) does not exist: run make bench-baseline BASELINE=$(BASELINE)' >&2; exit 1; }
	$(benchmarks)
	@for file in '$(BASELINE)' dist/bench.txt; do printf '%s: on %s\n' "$$file" "$$(sed -n 's/^cpu: //p' "$$file" | sort -u)"; done
	@benchstat=$$($(TOOL) benchstat) && "$$benchstat" -ignore cpu,goos,goarch '$(BASELINE)' dist/bench.txt

.PHONY: bench-baseline
bench-baseline: go-present ## Run the benchmarks and store their output as BASELINE (to measure an edit, set BASELINE=dist/before.txt here and in bench-compare)
	$(benchmarks)
	@cp dist/bench.txt '$(BASELINE)' && echo 'This is the new $(BASELINE).'

# Each benchmark uses one core, so that times are CPU time and names are the same on every machine.
define benchmarks
	$(call step,benchmarks ($(COUNT) times each); their output is in dist/bench.txt)
	@mkdir -p dist && go test -run '^$$' -bench '$(BENCH)' -benchmem -cpu 1 -count $(COUNT) -benchtime $(BENCHTIME) $(BENCHDIRS:%=./%) >dist/bench.txt || \
		{ cat dist/bench.txt; exit 1; }
endef

.PHONY: fuzz
fuzz: go-present ## Run every fuzz test for FUZZTIME
	@grep -rl --include='*_test.go' '^func Fuzz' $(DIRS) | while IFS= read -r file; do \
		sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$$file" | while IFS= read -r name; do \
			printf '==> fuzz %s in %s\n' "$$name" "$$(dirname "$$file")"; \
			go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "./$$(dirname "$$file")" </dev/null || exit 1; \
		done || exit 1; done

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

# $(call unchanged,TARGET) checks that TARGET changes nothing in a copy of the source.
define unchanged
	$(call step,check that make $(1) changes nothing)
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && trap 'exit 1' HUP INT TERM && mkdir "$$copy/before" && \
		git ls-files --cached --others --exclude-standard | while IFS= read -r file; do \
			if [ -e "$$file" ]; then printf '%s\n' "$$file"; fi; done | tar -cf - -T - | tar -xf - -C "$$copy/before" && \
		cp -Rp "$$copy/before" "$$copy/after" && $(MAKE) -C "$$copy/after" $(1) && \
		if ! diff -ru "$$copy/before" "$$copy/after"; then echo 'error: out of date: run make fix-$(1)' >&2; exit 1; fi
endef
