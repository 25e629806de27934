// Package suite contains the tests that install everything on a real cluster, with pods as shards, disturb it, and
// remove it. They run only with make e2e, because they affect the whole cluster.
//
// Environment variables:
//
//   - E2E_INSTALL: directory of the kustomization to install, with images that the cluster can pull; if unset, the
//     tests are skipped
//   - E2E_PREVIOUS: directory of the version to upgrade from: crd.yaml contains its definitions, all.yaml everything;
//     if unset, the upgrade is not tested. make e2e builds it from the commit PREVIOUS, by default the previous one
//   - E2E_JOBSET: directory of the kustomization of JobSet, with an image that docs/adopt.md has changed; if unset,
//     that page is not tested. make e2e builds it
//   - E2E_ROOT: directory of the repository
//   - E2E_BIN: directory of kubectl-ring
//   - E2E_NODEKILL_IMAGE: the image of cmd/nodekill, which kills processes from their node
//   - E2E_SCALE: small (the default) or full, which takes longer and has stricter limits
//   - E2E_KEEP: if set, rings of failed tests are not removed
//   - E2E_REUSE: if set, the existing installation is used and not removed
package suite
