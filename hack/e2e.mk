# Faults, simulations, and scenarios on a cluster.

# The commit that make e2e upgrades from.
PREVIOUS   ?= HEAD~1

##@ Prove

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
		exec go test -C services/lab/simulation -tags invariants -count=1 -timeout 6h -v -run '^Test$(if $(MUTATIONS),Mutations,Seeds)$$' $(ARGS) .

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
e2e: go-present $(BIN)/kubectl-ring ## Install everything on the cluster of KUBECONFIG, disturb it under load, upgrade it from PREVIOUS, and remove it (E2E_SCALE=full takes longer)
	@command -v kubectl >/dev/null || { echo 'error: kubectl not found: install it and add it to PATH' >&2; exit 1; }
	@repo='$(or $(IMAGE_REPO),$(KO_DOCKER_REPO),$(SKAFFOLD_DEFAULT_REPO))'; [ -n "$$repo" ] || { \
			echo 'error: no image registry: run make e2e IMAGE_REPO=registry.example.com/clusterring with a registry that the cluster pulls from' >&2; exit 1; } && \
		platforms=$$(kubectl get nodes -o 'jsonpath={range .items[*]}{.status.nodeInfo.operatingSystem}/{.status.nodeInfo.architecture}{"\n"}{end}' | sort -u | paste -s -d , -) && \
		printf '==> the cluster is %s, its machines are %s\n' "$$(kubectl config current-context)" "$$platforms" && \
		$(MAKE) test-signatures IMAGE_REPO="$$repo" PLATFORMS="$$platforms" OVERLAY=tools/e2e/overlay INSTALL=dist/e2e MORE_IMAGES=./tools/e2e/cmd/nodekill && \
		$(MAKE) e2e-jobset IMAGE_REPO="$$repo" PLATFORMS="$$platforms" && \
		$(MAKE) e2e-previous IMAGE_REPO="$$repo" PLATFORMS="$$platforms"
	$(call step,scenarios)
	@{ [ ! -d dist/e2e/previous ] || export E2E_PREVIOUS=$(CURDIR)/dist/e2e/previous; } && \
		E2E_INSTALL=$(CURDIR)/dist/e2e E2E_JOBSET=$(CURDIR)/dist/e2e/jobset E2E_ROOT=$(CURDIR) E2E_BIN=$(abspath $(BIN)) \
		E2E_NODEKILL_IMAGE=$$(sed -n '/\/nodekill[:@]/p' dist/e2e/images.txt) \
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
	@cosign=$$($(TOOL) cosign) && crane=$$($(TOOL) crane) && check() { "$$cosign" "$$@" --insecure-ignore-tlog; } && \
		signed() { check verify --key $(KEYS)/$$1.pub "$$2" && check verify-attestation --type spdxjson --key $(KEYS)/$$1.pub "$$2"; } && \
		refused() { if "$$@" >$(KEYS)/log 2>&1; then echo "error: it should be refused: $$*" >&2; exit 1; fi; grep -Eq 'no signatures found|do not match threshold' $(KEYS)/log || { cat $(KEYS)/log >&2; exit 1; }; } && \
		while read -r image <&3; do \
			for digest in "$${image#*@}" $$(for platform in $$(echo '$(PLATFORMS)' | tr , ' '); do "$$crane" digest --platform "$$platform" "$$image" || echo "none for $$platform"; done); do \
				signed cosign "$${image%@*}@$$digest" >$(KEYS)/log 2>&1 || { cat $(KEYS)/log >&2; echo "error: $$image, $$digest: no valid signature, or SBOM" >&2; exit 1; }; done; \
			refused check verify --key $(KEYS)/other.pub "$$image"; \
			changed=$$("$$crane" mutate --annotation changed=yes "$${image%@*}@$$digest") && refused check verify --key $(KEYS)/cosign.pub "$$changed" || exit; \
			echo "signed, with SBOMs: $$image"; \
		done 3<$(INSTALL)/images.txt

# JobSet as docs/adopt.md shards it: its source with the changes of that page, built with our library, and its own manifests with that image. It requests
# less CPU, because small clusters are enough for the test.
.PHONY: e2e-jobset
e2e-jobset: DIR := $(CURDIR)/dist/e2e/jobset
e2e-jobset: go-present
	$(call step,JobSet as docs/adopt.md shards it)
	@rm -rf $(DIR) && mkdir -p $(DIR) && ko=$$($(TOOL) ko) && \
		GOWORK=off go mod download -C tools sigs.k8s.io/jobset && \
		cp -R "$$(GOWORK=off go list -C tools -m -f '{{.Dir}}' sigs.k8s.io/jobset)" $(DIR)/source && chmod -R u+w $(DIR)/source && \
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
