package toolcache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock locks the file, waits for another holder if necessary, and returns a function that unlocks it. The kernel unlocks the file when the
// process dies, so a killed build does not block others. lock calls waiting if it has to wait.
func lock(ctx context.Context, path string, waiting func()) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make the cache directory: %w", err)
	}

	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock of the cache: %w", err)
	}

	fd := int(file.Fd())

	err = syscall.Flock(fd, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		waiting()

		err = wait(ctx, fd)
	}

	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}

	return func() { _ = file.Close() }, nil // closing unlocks; nothing was written
}

// wait blocks until the lock is acquired or ctx ends. If ctx ends, a goroutine remains until the process exits.
func wait(ctx context.Context, fd int) error {
	got := make(chan error, 1)

	go func() {
		err := syscall.Flock(fd, syscall.LOCK_EX)
		for errors.Is(err, syscall.EINTR) {
			err = syscall.Flock(fd, syscall.LOCK_EX)
		}
		got <- err
	}()

	select {
	case err := <-got:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
