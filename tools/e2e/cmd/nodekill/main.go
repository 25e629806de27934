// Command nodekill kills the processes of a container from its node with SIGKILL, as the kernel does when memory is short: without notice
// to the kubelet and the API server.
//
// It needs access to the processes of the node (hostPID) and the right to signal them.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
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
