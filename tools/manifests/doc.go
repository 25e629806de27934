// Package manifests tells what is wrong with what deploy/ and skaffold.yaml would put on a cluster.
//
// It builds kustomizations as kubectl does, and looks at the result: is every pod as restricted as Kubernetes knows how to ask
// for, is it probed, does it ask for what it needs, does it get the time to stop that its flags take; does what refers to
// something by name or label find it. Its tests do so for every kustomization of the repository, run the programs to see
// that they know their flags, and keep the tables of flags in docs/installation.md up to date (go test -update).
package manifests
