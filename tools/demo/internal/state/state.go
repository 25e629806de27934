// Package state keeps track of the demos of this user, so that demo down can find and remove what they have left
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
	"strings"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// Kind is how a demo was started.
type Kind string

const (
	// Run is a demo that ends by itself.
	Run Kind = "run"
	// Up is a demo that runs until it is stopped. There is one at a time, always in the same directory: an exported path
	// stays valid.
	Up Kind = "up"
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

// UpDir returns the state directory of the demo of the kind Up.
func UpDir() string { return prefix() + string(Up) }

// Claim is a demo of this process.
type Claim struct {
	// Dir is the absolute path of the state directory.
	Dir  string
	lock *os.File
}

// NewClaim creates a state directory, which is locked until [Claim.Release] or the end of the process.
func NewClaim(kind Kind) (*Claim, error) {
	var (
		c   = &Claim{Dir: UpDir()}
		err error
	)

	if kind == Up {
		err = os.Mkdir(c.Dir, 0o700)
	} else {
		c.Dir, err = os.MkdirTemp("", filepath.Base(prefix())+string(kind)+"-*")
	}

	if err == nil {
		c.lock, err = os.OpenFile(filepath.Join(c.Dir, lockFile), os.O_CREATE|os.O_WRONLY, 0o600)
	}

	if err != nil {
		return nil, fmt.Errorf("create the state directory: %w", err)
	}

	// Who finds the lock taken finds the process id, too.
	_, err = c.lock.WriteString(strconv.Itoa(os.Getpid()))
	if err = errors.Join(err, syscall.Flock(int(c.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the state directory: %w", err), c.lock.Close())
	}

	return c, nil
}

// Release ends the claim. The directory remains.
func (c *Claim) Release() error {
	if err := c.lock.Close(); err != nil {
		return fmt.Errorf("unlock the state directory: %w", err)
	}

	return nil
}

// Demo is a demo that runs, or what is left of it.
type Demo struct {
	Kind Kind
	// Dir is the absolute path of the state directory.
	Dir string
}

// Demos returns all demos, in the order of their directories.
func Demos() ([]Demo, error) {
	dirs, err := filepath.Glob(prefix() + "*")
	if err != nil {
		return nil, fmt.Errorf("look for demos: %w", err)
	}

	var demos []Demo

	for _, dir := range dirs {
		kind, _, _ := strings.Cut(strings.TrimPrefix(dir, prefix()), "-")
		demos = append(demos, Demo{Kind: Kind(kind), Dir: dir})
	}

	return demos, nil
}

// Running returns the process id of the demo, 0 if it does not run.
func (d Demo) Running() (pid int, err error) {
	file := filepath.Join(d.Dir, lockFile)

	lock, err := os.Open(file)
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

	content, err := os.ReadFile(file)
	if err == nil {
		pid, err = strconv.Atoi(string(content))
	}

	if err != nil {
		return 0, fmt.Errorf("find the process of a demo: %w", err)
	}

	return pid, nil
}

// Remove stops the demo and removes what is left of it: a running demo receives SIGTERM, and later SIGKILL; its
// processes are killed; its state directory is removed.
func (d Demo) Remove(ctx context.Context) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		pid, err := d.Running()
		if err != nil {
			return err
		}

		if pid == 0 {
			break
		}

		if err := syscall.Kill(pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the demo (process %d): %w", pid, err)
		}

		err = wait.PollUntilContextTimeout(ctx, poll, orderly, true, func(context.Context) (bool, error) {
			pid, err := d.Running()
			return pid == 0, err
		})
		if err != nil && (ctx.Err() != nil || signal == syscall.SIGKILL) {
			return fmt.Errorf("stop the demo (process %d): %w", pid, err)
		}
	}

	return Discard(ctx, d.Dir)
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
