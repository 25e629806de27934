// Package state keeps track of the demos of this user, so that demo down can stop them, and remove what they have left
// behind, however they ended.
//
// Each demo has a state directory, which all its processes have in their arguments. The demo keeps a file in it locked
// as long as it runs. No lock outlives its process.
package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	lockFile = "pid" // contains the process id of the demo, which has locked it
	poll     = 100 * time.Millisecond
	// orderly limits the time in which a demo stops after a signal.
	orderly = 45 * time.Second
	// removal limits the time until killed processes are gone and write no more files.
	removal = 10 * time.Second
)

// prefix begins the paths of the state directories.
func prefix() string {
	return filepath.Join(os.TempDir(), "clusterring-demo-"+strconv.Itoa(os.Getuid())+"-")
}

// UpDir returns the state directory of demo up. There is one such demo at a time.
func UpDir() string { return prefix() + "up" }

// Claim creates a state directory, the given one or a new one. It is locked until release is called, or the process
// ends.
func Claim(dir string) (claimed string, release func() error, err error) {
	if dir == "" {
		dir, err = os.MkdirTemp("", filepath.Base(prefix())+"run-*")
	} else {
		err = os.Mkdir(dir, 0o700)
	}

	if err != nil {
		return "", nil, fmt.Errorf("create the state directory: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		// Who finds the lock taken finds the process id, too.
		_, err = lock.WriteString(strconv.Itoa(os.Getpid()))
		err = errors.Join(err, syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	}

	if err != nil {
		return "", nil, fmt.Errorf("lock the state directory: %w", err)
	}

	return dir, lock.Close, nil
}

// Dirs returns the state directories of all demos.
func Dirs() ([]string, error) {
	return filepath.Glob(prefix() + "*") //nolint:wrapcheck // only for a bad pattern
}

// Running returns the process id of the demo, 0 if it does not run.
func Running(dir string) (pid int, err error) {
	lock, err := os.Open(filepath.Join(dir, lockFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}

	if err != nil {
		return 0, fmt.Errorf("find out whether a demo runs: %w", err)
	}

	defer func() { _ = lock.Close() }() // was only read

	err = syscall.Flock(int(lock.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)
	if !errors.Is(err, syscall.EWOULDBLOCK) {
		return 0, err //nolint:wrapcheck // nil, or nothing that a file of this process should cause
	}

	if _, err := fmt.Fscan(lock, &pid); err != nil {
		return 0, fmt.Errorf("find the process of a demo: %w", err)
	}

	return pid, nil
}

// Remove stops the demo if it runs, and removes what is left of it.
func Remove(ctx context.Context, dir string) error {
	pid, err := Running(dir)
	if err == nil && pid != 0 {
		err = syscall.Kill(pid, syscall.SIGTERM)
	}

	if err == nil {
		err = wait.PollUntilContextTimeout(ctx, poll, orderly, true, func(context.Context) (bool, error) {
			pid, err := Running(dir)
			return pid == 0, err
		})
	}

	if err != nil {
		return fmt.Errorf("stop the demo (process %d): %w", pid, err)
	}

	return Discard(ctx, dir)
}

// Discard kills the processes that have the directory in their arguments, except this one and its ancestors, and
// removes it.
func Discard(ctx context.Context, dir string) error {
	var last error
	// A process that was just killed may still write a file into a directory that is being removed.
	err := wait.PollUntilContextTimeout(ctx, poll, removal, true, func(context.Context) (bool, error) {
		last = localplane.RemoveState(dir)
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("remove the state of a demo: %w", errors.Join(last, err))
	}

	return nil
}
