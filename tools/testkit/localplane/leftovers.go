package localplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	// temporaryPrefix begins the name of every temporary state directory.
	temporaryPrefix = "clusterring-plane-"
	// ownerFile contains the id of the process that removes the temporary state directory.
	ownerFile = "owner"
)

// RemoveState kills the processes of this user that have the state directory in their arguments, except the calling process and its
// ancestors, and removes the directory. It cleans up after a killed parent. It ignores a missing directory.
func RemoveState(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("find the state directory: %w", err)
	}

	errs := []error{killNaming(dir)}
	if err := os.RemoveAll(dir); err != nil {
		errs = append(errs, fmt.Errorf("remove the state directory: %w", err))
	}

	return errors.Join(errs...)
}

// killNaming kills the processes that name the directory, and waits until they are gone.
func killNaming(dir string) error {
	err := wait.PollUntilContextTimeout(context.Background(), pollInterval, stopTimeout, true, func(context.Context) (bool, error) {
		pids, err := processesNaming(dir)
		if err != nil {
			return false, err
		}

		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return false, fmt.Errorf("process %d: %w", pid, err)
			}
		}

		return len(pids) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("kill the processes of %s: %w", dir, err)
	}

	return nil
}

// sweep removes temporary control planes of test processes that were killed or timed out.
func sweep() error {
	dirs, err := filepath.Glob(filepath.Join(os.TempDir(), temporaryPrefix+"*"))
	if err != nil {
		return fmt.Errorf("list left-over control planes: %w", err)
	}

	var errs []error

	for _, dir := range dirs {
		content, err := os.ReadFile(filepath.Join(dir, ownerFile))
		if err != nil {
			continue // not a state directory, or incomplete
		}

		owner, err := strconv.Atoi(strings.TrimSpace(string(content)))
		if err != nil || alive(owner) {
			continue
		}

		errs = append(errs, RemoveState(dir))
	}

	return errors.Join(errs...)
}

func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// processesNaming returns the ids of this user's processes with an argument that is dir or a path in it.
func processesNaming(dir string) ([]int, error) {
	all, err := listProcesses()
	if err != nil {
		return nil, err
	}

	spared := map[int]bool{}
	for pid := os.Getpid(); pid > 1 && !spared[pid]; pid = all[pid].parent {
		spared[pid] = true
	}

	var pids []int

	for pid, p := range all {
		if !spared[pid] && p.uid == os.Getuid() && namesPath(p.args, dir) {
			pids = append(pids, pid)
		}
	}

	return pids, nil
}
