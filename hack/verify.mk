# The checks that `make verify` runs, and what repairs them.

# The licenses that what we ship may have.
LICENSES   := Apache-2.0,BSD-2-Clause,BSD-3-Clause,ISC,MIT
# The database of known vulnerabilities: a URL, or file:///path of a copy.
VULNDB     ?= https://vuln.go.dev

##@ Checks of make verify, one by one

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
	@failed=; for module in $(MODULES); do \
		printf '==> build and vet %s on its own\n' "$$module"; \
		(cd "$$module" && $(standalone) && export $(NOCGO) && go build ./... && go vet ./...) || failed="$$failed $$module"; done; \
	if [ -n "$$failed" ]; then echo "error: on their own, outside the workspace, these do not build or pass vet:$$failed" >&2; exit 1; fi

.PHONY: verify-lint fix-lint
verify-lint: go-present ## The code complies with .golangci.yml (fix-lint)
	$(call step,lint)
	@lint=$$($(TOOL) golangci-lint) && export $(NOCGO) && "$$lint" run $(call packages,$(DIRS)) && \
		(cd tools/controlplane && GOWORK=off "$$lint" run --config ../../.golangci.yml .)
fix-lint: go-present
	$(call step,lint and repair)
	@lint=$$($(TOOL) golangci-lint) && "$$lint" run --fix $(call packages,$(DIRS))

.PHONY: verify-walls
verify-walls: go-present ## Controllers bound their retries, and no file has a word that docs/development.md rules out
	$(call step,check retries and words)
	@cd tools/walls && go test -count=1 .

# go-licenses takes everything for the standard library if it does not know where that is, and passes. Therefore GOROOT, and a check that
# has to fail. kubectl-ring also runs on other systems than the services do.
.PHONY: verify-licenses
verify-licenses: go-present ## All that we ship has a license of the list in hack/verify.mk
	$(call step,check licenses)
	@licenses=$$($(TOOL) go-licenses) && log=$$(mktemp) && trap 'rm -f "$$log"' EXIT && export $(NOCGO) GOROOT="$$(go env GOROOT)" && \
		allow() { "$$licenses" check --ignore $(PATHS) --allowed_licenses "$$@" >"$$log" 2>&1; } && \
		allowed() { GOOS=$$1 GOARCH=amd64; export GOOS GOARCH; shift; allow $(LICENSES) "$$@" || { \
			grep -v -e ' contains non-Go code ' -e '\.s$$' "$$log" >&2; echo "error: a dependency on $$GOOS has a license that is not in LICENSES in hack/verify.mk" >&2; exit 1; }; } && \
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

# $(call unchanged,TARGET) checks that TARGET changes nothing in a copy of the source.
define unchanged
	$(call step,check that make $(1) changes nothing)
	@copy=$$(mktemp -d) && trap 'rm -rf "$$copy"' EXIT && trap 'exit 1' HUP INT TERM && mkdir "$$copy/before" && \
		git ls-files --cached --others --exclude-standard | while IFS= read -r file; do \
			if [ -e "$$file" ]; then printf '%s\n' "$$file"; fi; done | tar -cf - -T - | tar -xf - -C "$$copy/before" && \
		cp -Rp "$$copy/before" "$$copy/after" && $(MAKE) -C "$$copy/after" $(1) && \
		if ! diff -ru "$$copy/before" "$$copy/after"; then echo 'error: out of date: run make fix-$(1)' >&2; exit 1; fi
endef
