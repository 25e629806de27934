# Images: their destination (default: dist/images, as an OCI layout), their platforms, and the kustomization that dist/install
# uses them in. The base image is that of .ko.yaml, or $KO_DEFAULTBASEIMAGE.
IMAGE_REPO ?=
PLATFORMS  ?= linux/amd64,linux/arm64
OVERLAY    ?= deploy/base
# Directory of the result. It is two directories deep.
INSTALL    ?= dist/install
# Packages of additional programs to build images of.
MORE_IMAGES ?=
# The private key that signs images: a file, or a reference to a KMS, as cosign names it. $$COSIGN_PASSWORD decrypts a file.
COSIGN_KEY ?=
# The creation time of images is the time of the commit, so that the same source results in the same image.
SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

##@ Images

.PHONY: images
images: go-present ## Build the images; to push them: make images IMAGE_REPO=registry.example.com/clusterring [COSIGN_KEY=...] [OVERLAY=a kustomization of your own]
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
