package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/clusterring/clusterring/tools/lab/localplane"
)

const (
	poll = 100 * time.Millisecond
	// orderly is how long a demo that is told to stop may take for it.
	orderly = 45 * time.Second
	// removal is how long it may take until killed processes are gone and do not write any more.
	removal = 10 * time.Second
)

// Remove ends the demo and removes what is left of it: a demo that runs is told to stop, then killed; its processes are killed,
// its state directory and its record are removed.
func (r *Record) Remove(ctx context.Context) error {
	if r.alive {
		if err := r.stop(ctx); err != nil {
			return err
		}
	}

	if err := Discard(ctx, r.Dir); err != nil {
		return err
	}

	if err := os.Remove(r.file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the record of a demo: %w", err)
	}

	return nil
}

// stop tells the process that has locked the record to stop, and kills it if it does not in time.
func (r *Record) stop(ctx context.Context) error {
	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(r.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the demo (process %d): %w", r.PID, err)
		}

		err := wait.PollUntilContextTimeout(ctx, poll, orderly, true, func(context.Context) (bool, error) {
			now, err := read(r.file)
			if errors.Is(err, os.ErrNotExist) {
				return true, nil
			}

			return err == nil && !now.alive, err
		})
		if err == nil {
			return nil
		}

		if ctx.Err() != nil {
			return fmt.Errorf("stop the demo (process %d): %w", r.PID, err)
		}
	}

	return fmt.Errorf("the demo (process %d) does not stop", r.PID)
}

// Discard kills the processes whose arguments name the directory, except this one and its ancestors, and removes it.
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
