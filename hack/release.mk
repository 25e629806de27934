# The files and tags of a release.

# What make release makes: kubectl plugins for these platforms, and URLs below this one. DRY_RUN=1 makes everything but the tags.
PLUGIN_PLATFORMS ?= linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64
DOWNLOADS ?= https://$(PATHS)/releases/download
DRY_RUN   ?=
# The target that builds the images of a release, and where it writes their SBOMs. Tests have SBOMs without images.
RELEASE_IMAGES ?= images
RELEASE_SBOMS  ?= dist/install/sbom

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
