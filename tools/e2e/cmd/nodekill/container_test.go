package main

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const (
	uid = "0f1e2d3c-1111-2222-3333-444455556666"
	id  = "8d3c7a3b5e6f708192a3b4c5d6e7f8091a2b3c4d5e6f708192a3b4c5d6e7f809"
	// pause is the container that keeps the pod's network.
	pause = "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
)

func TestIn(t *testing.T) {
	c, err := parse(uid, "containerd://"+id)
	require.NoError(t, err)

	for name, test := range map[string]struct {
		cgroup string
		want   bool
	}{
		"version 1":                  {"12:cpu,cpuacct:/kubepods/burstable/pod" + uid + "/" + id + "\n11:memory:/\n", true},
		"version 1, in the last one": {"12:cpu,cpuacct:/\n11:memory:/kubepods/pod" + uid + "/" + id, true},
		"version 2":                  {"0::/kubepods/besteffort/pod" + uid + "/" + id + "\n", true},
		"version 2, by systemd": {
			"0::/kubepods.slice/kubepods-pod0f1e2d3c_1111_2222_3333_444455556666.slice/cri-containerd-" + id + ".scope\n", true,
		},
		"version 2, seen from elsewhere": {"0::/../../pod" + uid + "/crio-" + id + ".scope\n", true},
		"the pod's other container":      {"0::/kubepods/besteffort/pod" + uid + "/" + pause + "\n", false},
		"another pod": {"0::/kubepods/besteffort/pod1f1e2d3c-1111-2222-3333-444455556666/" + id +
			"\n", false},
		"two lines that say half each": {"2:cpu:/kubepods/pod" + uid + "/" + pause + "\n1:memory:/machine/" + id +
			"\n", false},
		"a process of the node": {"0::/system.slice/kubelet.service\n", false},
		"nothing":               {"", false},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, c.in([]byte(test.cgroup)))
		})
	}
}

func TestParse(t *testing.T) {
	_, err := parse("", "containerd://"+id)
	require.ErrorContains(t, err, "UID is empty")

	for _, bad := range []string{"", "containerd://", "cri-o://0123"} {
		_, err := parse(uid, bad)
		require.ErrorContains(t, err, "is not a container ID", "%q would be in many groups", bad)
	}
}

func TestFind(t *testing.T) {
	c, err := parse(uid, "cri-o://"+id)
	require.NoError(t, err)

	ours := &fstest.MapFile{Data: []byte("0::/kubepods/pod" + uid + "/" + id + "\n")}
	found, err := find(fstest.MapFS{
		"1/cgroup":       {Data: []byte("0::/init.scope\n")},
		"70/cgroup":      ours,
		"700/cgroup":     ours,
		"71/cgroup":      {Data: []byte("0::/kubepods/pod" + uid + "/" + pause + "\n")},
		"72/comm":        {Data: []byte("it has just ended")},
		"self/cgroup":    ours,
		"sys/kernel/pid": {Data: []byte("1")},
	}, c)
	require.NoError(t, err)
	require.Equal(t, []int{70, 700}, found)

	_, err = find(fstest.MapFS{"a": {}}, c)
	require.NoError(t, err)
}
