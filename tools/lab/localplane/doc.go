// Package localplane runs a real Kubernetes control plane on this machine, for tests and the demo: etcd, kube-apiserver and,
// if wanted, kube-controller-manager, on free ports of 127.0.0.1, with RBAC, under a state directory.
//
// [Start] starts one and [Plane.Stop] ends it; [Plane.Install] applies the manifests of deploy/, so that services run with
// the same rights as in a cluster. Tests use [Main] and [Shared]: one control plane per test process, started by the first
// test that asks for it.
//
// There is no kubelet and no scheduler. Without the controller manager nothing collects garbage or empties a deleted
// namespace; tests take a new namespace each instead ([Plane.Namespace]).
//
// Every process that is started names the state directory in its arguments, so that what a killed parent left behind can
// be found by it ([RemoveState]).
package localplane
