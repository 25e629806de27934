// Package assigner promises one thing.
package assigner

import (
	_ "github.com/stretchr/testify/require"
	_ "go.etcd.io/etcd/server/v3/etcdmain"
	_ "k8s.io/apiserver/pkg/cel"
	_ "sigs.k8s.io/controller-runtime/pkg/envtest"
)
