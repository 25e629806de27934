// Package state keeps track of the demos of this user, so that demo down can find and remove what they have left behind, however they ended.
//
// Each demo has a state directory, which all its processes have in their arguments, and a record of it in the user's cache directory. The
// demo keeps the record locked as long as it runs. No lock outlives its process.
package state

import (
	"context"
	"encoding/json"
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

// Kind is how a demo was started.
type Kind string

const (
	// Run is a demo that ends by itself.
	Run Kind = "run"
	// Up is a demo that runs until it is stopped. There is one at a time.
	Up Kind = "up"
)

const (
	suffix  = ".json"
	private = 0o700
	poll    = 100 * time.Millisecond
	// orderly limits the time in which a demo stops after a signal.
	orderly = 45 * time.Second
	// removal limits the time until killed processes are gone and write no more files.
	removal = 10 * time.Second
)

// Registry is a directory of records. The zero value is not usable; see Default.
type Registry struct {
	// Dir is created with the first record.
	Dir string
}

// Default returns the registry of this user.
func Default() Registry {
	if cache, err := os.UserCacheDir(); err == nil {
		return Registry{Dir: filepath.Join(cache, "clusterring", "demo")}
	}

	return Registry{Dir: filepath.Join(os.TempDir(), "clusterring-demo-records-"+strconv.Itoa(os.Getuid()))}
}

// Record describes a demo.
type Record struct {
	Kind Kind `json:"kind"`
	// Dir is the absolute path of the state directory.
	Dir string `json:"dir"`
	// PID is the process that holds the lock and cleans up.
	PID int `json:"pid"`

	file  string
	alive bool
}

// Alive reports whether the demo was running when the record was read.
func (r *Record) Alive() bool { return r.alive }

// Claim is a record of this process.
type Claim struct {
	Record
	lock *os.File
}

// Claim creates the state directory, which must not exist or be empty, and a record of it, which is locked until Release or the end of the
// process. An empty dir means a new temporary directory.
func (r Registry) Claim(kind Kind, dir string) (*Claim, error) {
	dir, err := makeDir(dir)
	if err != nil {
		return nil, err
	}

	claim := &Claim{Record: Record{Kind: kind, Dir: dir, PID: os.Getpid(), alive: true}}
	if err := claim.write(r.Dir); err != nil {
		return nil, errors.Join(fmt.Errorf("record the demo: %w", err), os.Remove(dir))
	}

	return claim, nil
}

// write creates the record, which is complete and locked before others can see it.
func (c *Claim) write(records string) (err error) {
	if err := os.MkdirAll(records, private); err != nil {
		return err //nolint:wrapcheck // Claim does, here and below
	}

	if c.lock, err = os.CreateTemp(records, string(c.Kind)+"-*"); err != nil {
		return err //nolint:wrapcheck // as above
	}

	c.file = c.lock.Name() + suffix
	if c.Kind == Up {
		c.file = filepath.Join(records, string(Up)+suffix)
	}

	err = errors.Join(json.NewEncoder(c.lock).Encode(c.Record), syscall.Flock(int(c.lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	if err == nil {
		err = os.Link(c.lock.Name(), c.file) // fails if there is a record already, as a rename would not
	}

	return errors.Join(err, os.Remove(c.lock.Name()))
}

func makeDir(dir string) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", "clusterring-demo-*")
	} else if dir, err = filepath.Abs(dir); err == nil {
		err = os.MkdirAll(dir, private)
	}

	if err != nil {
		return "", fmt.Errorf("create the state directory: %w", err)
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("read the state directory: %w", err)
	}

	if len(entries) > 0 {
		return "", fmt.Errorf("state directory %s is not empty: it will be removed at the end, so choose one that does not exist yet", dir)
	}

	return dir, nil
}

// Release ends the claim. If keep is true, the record remains, because the demo leaves files behind.
func (c *Claim) Release(keep bool) error {
	err := c.lock.Close()
	if !keep {
		err = errors.Join(err, os.Remove(c.file))
	}

	if err != nil {
		return fmt.Errorf("remove the record of the demo: %w", err)
	}

	return nil
}

// Records returns the records of all demos, in the order of their names.
func (r Registry) Records() ([]*Record, error) {
	files, err := filepath.Glob(filepath.Join(r.Dir, "*"+suffix))
	if err != nil {
		return nil, fmt.Errorf("look for demos: %w", err)
	}

	var records []*Record

	for _, file := range files {
		record, err := read(file)
		if err != nil {
			return nil, err
		}

		if record != nil { // it may have ended meanwhile
			records = append(records, record)
		}
	}

	return records, nil
}

// Up returns the record of the demo that runs until it is stopped, nil if there is none.
func (r Registry) Up() (*Record, error) { return read(filepath.Join(r.Dir, string(Up)+suffix)) }

// read reads a record. It returns nil if there is none.
func read(file string) (*Record, error) {
	in, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // as documented
	}

	if err != nil {
		return nil, fmt.Errorf("read the record of a demo: %w", err)
	}

	defer func() { _ = in.Close() }() // was only read

	record := &Record{file: file}
	if err := json.NewDecoder(in).Decode(record); err != nil {
		return nil, fmt.Errorf("read the record of a demo, %s: %w", file, err)
	}

	if !filepath.IsAbs(record.Dir) || filepath.Dir(record.Dir) == record.Dir {
		return nil, fmt.Errorf("the record of a demo, %s, names no state directory: remove it", file)
	}

	err = syscall.Flock(int(in.Fd()), syscall.LOCK_SH|syscall.LOCK_NB)

	record.alive = errors.Is(err, syscall.EWOULDBLOCK)
	if err != nil && !record.alive {
		return nil, fmt.Errorf("find out whether the demo of %s runs: %w", file, err)
	}

	return record, nil
}

// Remove stops the demo and removes what is left of it: a running demo receives SIGTERM, and later SIGKILL; its processes are killed; its
// state directory and its record are removed.
func (r *Record) Remove(ctx context.Context) error {
	if r.Alive() {
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

// stop sends SIGTERM, and SIGKILL if the demo does not stop in time.
func (r *Record) stop(ctx context.Context) error {
	var last error

	for _, signal := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		if err := syscall.Kill(r.PID, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop the demo (process %d): %w", r.PID, err)
		}

		last = wait.PollUntilContextTimeout(ctx, poll, orderly, true, func(context.Context) (bool, error) {
			now, err := read(r.file)
			return now == nil || !now.Alive(), err
		})
		if last == nil {
			return nil
		}

		if ctx.Err() != nil {
			break // interrupted: no reason to kill it
		}
	}

	return fmt.Errorf("stop the demo (process %d): %w", r.PID, last)
}

// Discard kills the processes that have the directory in their arguments, except this one and its ancestors, and removes it.
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
