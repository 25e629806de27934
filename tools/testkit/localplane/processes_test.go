package localplane

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProgramsOf(t *testing.T) {
	all := map[int]processInfo{
		10: {parent: 1, args: "/bin/etcd\x00--data-dir=/s/etcd\x00"},
		11: {parent: 1, args: "/bin/kube-apiserver --cert-dir=/s/apiserver"}, // as ps says it
		12: {parent: 1, args: "/bin/assigner\x00--kubeconfig=/s/kubeconfig\x00"},
		13: {parent: 1, args: "/bin/etcd\x00--data-dir=/s2/etcd\x00"},
		14: {parent: 2, args: "/bin/etcd\x00--data-dir=/s/etcd\x00"},
		15: {parent: 1},
	}
	require.Equal(t, map[string]int{"etcd": 10, "kube-apiserver": 11}, programsOf(all, 1, "/s"))
}
