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
	container := flag.String("container", "", "`ID` of the container from the pod's status")
	flag.Parse()

	if err := kill(os.Stdout, *container); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// kill kills the processes of a container, and writes their ids to out. It returns an error if there are none.
func kill(out io.Writer, container string) error {
	found, err := find(os.DirFS("/proc"), container)
	if err != nil {
		return err
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

// find returns the sorted ids of the processes of a container, possibly none. proc is the node's /proc. The ID is that
// of a status, for example containerd://0123456789ab. Container runtimes name the control group of a container by its
// ID, in both versions of control groups. Processes that end meanwhile are omitted.
func find(proc fs.FS, container string) ([]int, error) {
	id := []byte(container[strings.LastIndexByte(container, '/')+1:])
	if len(id) < shortest {
		return nil, fmt.Errorf("%q is not a container ID such as containerd://0123456789abcdef", container)
	}

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
		if err == nil && bytes.Contains(cgroup, id) {
			found = append(found, number)
		}
	}

	return found, nil
}
