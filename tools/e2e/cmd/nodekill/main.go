// Command nodekill kills the processes of a container from its node with SIGKILL, as the kernel does when memory is
// short: without notice to the kubelet and the API server.
//
// It needs access to the processes of the node (hostPID) and the right to signal them.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"
)

func main() {
	pod := flag.String("pod", "", "`UID` of the pod")
	container := flag.String("container", "", "`ID` of the container from the pod's status")
	flag.Parse()

	if err := kill(os.Stdout, *pod, *container); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// kill kills the processes of a container, and writes their ids to out. It returns an error if there are none.
func kill(out io.Writer, pod, id string) error {
	c, err := parse(pod, id)
	if err != nil {
		return fmt.Errorf("parse the container: %w", err)
	}

	found, err := find(os.DirFS("/proc"), c)
	if err != nil {
		return fmt.Errorf("find the container: %w", err)
	}

	if len(found) == 0 {
		return errors.New("the container has no process on this node: does this run with hostPID, on the node of the pod?")
	}

	for _, number := range found {
		if err := syscall.Kill(number, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d: %w", number, err)
		}
		fmt.Fprintln(out, "killed process", number)
	}

	return nil
}

// shortest is the minimum length of a container ID.
const shortest = 12

// container is a container of a pod, as the kubelet names them.
type container struct {
	// pod is the UID of the pod, id the ID of the container without the prefix of the runtime.
	pod, id string
}

// parse returns the container of the pod UID and the container ID of a status, for example containerd://0123456789ab.
// It returns an error if one of them is invalid.
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

// in reports whether a process with this /proc/PID/cgroup is in the container. Each line ends with the path of a
// control group. The kubelet names the group of the pod by its UID (with underscores if systemd manages the groups),
// and the container runtime names the group below it by the container ID. This applies to both versions of control
// groups.
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

// find returns the sorted ids of the container's processes, possibly none. proc is the node's /proc. Processes that end
// meanwhile are omitted.
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
