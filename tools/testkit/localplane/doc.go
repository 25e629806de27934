// Package localplane runs a real Kubernetes control plane on this machine for tests and tools: etcd, kube-apiserver, and optionally
// kube-controller-manager, on free ports of 127.0.0.1, with RBAC, in a state directory.
//
// [Start] starts a control plane, and [Plane.Stop] stops it. [Plane.Install] applies the manifests of deploy/, so that services have the
// same permissions as in a cluster. Tests use [Main] and [Shared], which start one control plane per test process on first use.
//
// There is no kubelet and no scheduler. Without the controller manager, there is no garbage collection, and deleted namespaces are not
// emptied. Therefore each test creates a new namespace ([Plane.Namespace]).
//
// All processes have the state directory in their arguments, so that [RemoveState] finds the processes of a killed parent.
package localplane
