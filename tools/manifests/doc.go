// Package manifests finds problems in the manifests of deploy/ and in skaffold.yaml.
//
// It builds kustomizations as kubectl does, and checks the result: every pod conforms to the restricted Pod Security Standard, and has
// probes, resource requests, and enough time to stop; references by name or label are valid. Its tests check every kustomization of the
// repository, run the programs to verify their flags, and keep the generated parts of docs up to date (go test -update): tables of flags,
// docs/proofs.md from docs/proofs.txt, and the index of rejected alternatives.
package manifests
