// Package process finds the processes of a pod's container among those of a node, by the control groups that the node's kernel lists
// for each. It reads /proc, or what is given in its place.
package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
)

// shortest is the least number of characters of a container's ID that says which container is meant.
const shortest = 12

// Container is a container of a pod, as the kubelet names them.
type Container struct {
	// Pod is the pod's UID.
	Pod string
	// ID is the container's, without the name of the runtime before it.
	ID string
}

// Parse returns the container of the given pod whose status has the given ID, such as containerd://0123456789ab. It returns an error
// if one of them is none.
func Parse(pod, id string) (Container, error) {
	c := Container{Pod: pod, ID: id[strings.LastIndexByte(id, '/')+1:]}
	if c.Pod == "" {
		return Container{}, errors.New("the pod's UID is empty")
	}
	if len(c.ID) < shortest {
		return Container{}, fmt.Errorf("%q is no ID of a container, such as containerd://0123456789abcdef", id)
	}
	return c, nil
}

// In says whether a process with this /proc/PID/cgroup is in the container. Each of its lines ends with the path of a control group.
// The kubelet names that of the pod by its UID, with underscores where systemd is asked for the groups, and the container's runtime
// names the one below by the container's ID. So it is in both versions of control groups.
func (c Container) In(cgroup []byte) bool {
	for line := range bytes.Lines(cgroup) {
		path := string(bytes.TrimSpace(line))
		pod := strings.Contains(path, "pod"+c.Pod) || strings.Contains(path, "pod"+strings.ReplaceAll(c.Pod, "-", "_"))
		if pod && strings.Contains(path[strings.LastIndexByte(path, '/')+1:], c.ID) {
			return true
		}
	}
	return false
}

// Find returns the numbers of the container's processes, lowest first; none if it has no process. proc is the node's /proc; processes
// that end meanwhile are left out.
func Find(proc fs.FS, c Container) ([]int, error) {
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
		if err == nil && c.In(cgroup) {
			found = append(found, number)
		}
	}
	return found, nil
}
