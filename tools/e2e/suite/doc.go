// Package suite has the tests that install everything on a real cluster, with pods as shards, break it in every way that operations
// do, and remove it. They run by make e2e alone, and are skipped without it: what they do concerns the whole cluster.
//
// Settings, all from the environment:
//
//   - E2E_INSTALL: directory of the kustomization to install, with images that the cluster can pull; without it the tests are skipped
//   - E2E_PREVIOUS: directory with what is upgraded from, crd.yaml with its definitions and all.yaml with all of it; without it nothing is
//     upgraded. make e2e makes it of the commit PREVIOUS, by default the one before
//   - E2E_ROOT: directory of the repository
//   - E2E_BIN: directory of kubectl-ring and grpcurl
//   - E2E_NODEKILL_IMAGE: the image of cmd/nodekill, which ends processes from the side of their node
//   - E2E_SKAFFOLD: the skaffold program; by default that of $PATH. Without it TestDevelopment is skipped
//   - E2E_IMAGE_REPO: where skaffold's images go; by default it decides
//   - E2E_KUBECTL: the kubectl program; by default that of $PATH
//   - E2E_SCALE: small (the default) or full, which takes longer and asks for more
//   - E2E_RATE: creates per second under load; by default 50
//   - E2E_KEEP: if set, a ring whose test has failed is not removed
//   - E2E_EXAMPLE_IMAGE: what the shards of the tests run; by default what the installed example runs
//   - E2E_REUSE: if set, what is installed already is used, and not removed
package suite
