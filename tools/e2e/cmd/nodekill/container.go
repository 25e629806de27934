package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// shortest is the minimum length of a container ID.
const shortest = 12

// container is a container of a pod, as the kubelet names them.
type container struct {
	// pod is the UID of the pod, id the ID of the container without the prefix of the runtime.
	pod, id string
}

// parse returns the container of the pod UID and the container ID of a status, for example containerd://0123456789ab. It returns an error if
// one of them is invalid.
func parse(pod, id string) (container, error) {
	c := container{pod: pod, id: id[strings.LastIndexByte(id, '/')+1:]}
	if c.pod == "" {
		return container{}, errors.New("the pod's UID is empty")
	}

	if len(c.id) < shortest {
		return container{}, fmt.Errorf("%q is not a container ID such as containerd://0123456789abcdef", id)
	}

	return c, nil
}

// in reports whether a process with this /proc/PID/cgroup is in the container. Each line ends with the path of a control group. The kubelet
// names the group of the pod by its UID (with underscores if systemd manages the groups), and the container runtime names the group below it
// by the container ID. This applies to both versions of control groups.
func (c container) in(cgroup []byte) bool {
	for line := range bytes.Lines(cgroup) {
		path := string(bytes.TrimSpace(line))

		pod := strings.Contains(path, "pod"+c.pod) || strings.Contains(path, "pod"+strings.ReplaceAll(c.pod, "-", "_"))
		if pod && strings.Contains(path[strings.LastIndexByte(path, '/')+1:], c.id) {
			return true
		}
	}

	return false
}

// find returns the sorted ids of the container's processes, possibly none. proc is the node's /proc. Processes that end meanwhile are
// omitted.
func find(proc fs.FS, c container) ([]int, error) {
	entries, err := fs.ReadDir(proc, ".")
	if err != nil {
		return nil, fmt.Errorf("list the processes: %w", err)
	}

	var found []int

	for _, e := range entries {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}

		cgroup, err := fs.ReadFile(proc, e.Name()+"/cgroup")
		if err == nil && c.in(cgroup) {
			found = append(found, number)
		}
	}

	return found, nil
}
