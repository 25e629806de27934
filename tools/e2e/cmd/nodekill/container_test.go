package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const (
	pod = "0f1e2d3c-1111-2222-3333-444455556666"
	id  = "8d3c7a3b5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809"
	// pause is the container that keeps the pod's network.
	pause = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)

func TestFind(t *testing.T) {
	cgroup := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	proc := fstest.MapFS{
		"1/cgroup":    cgroup("0::/init.scope\n"),
		"70/cgroup":   cgroup("12:cpu,cpuacct:/kubepods/burstable/pod" + pod + "/" + id + "\n11:memory:/\n"),
		"700/cgroup":  cgroup("0::/kubepods.slice/kubepods-pod0f1e2d3c_1111.slice/cri-containerd-" + id + ".scope\n"),
		"71/cgroup":   cgroup("0::/kubepods/pod" + pod + "/" + pause + "\n"),
		"72/comm":     cgroup("it has just ended"),
		"self/cgroup": cgroup("0::/kubepods/pod" + pod + "/" + id + "\n"),
	}

	found, err := find(proc, "cri-o://"+id)
	require.NoError(t, err)
	require.Equal(t, []int{70, 700}, found)

	for _, bad := range []string{"", "containerd://", "cri-o://0123"} {
		_, err := find(proc, bad)
		require.ErrorContains(t, err, "is not a container ID", "%q would be in many groups", bad)
	}
}
