// Package state keeps track of the demos of this user, so that what any of them has left behind can be found and removed,
// however it ended.
//
// Each demo has a directory for its state, which all its processes name in their arguments, and a record of that in the
// user's cache directory, which it keeps locked as long as it lives. No lock outlives its process, so a record that is not
// locked is that of a demo which has ended.
package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// Kind says how a demo was started.
type Kind string

const (
	// Run is a demo that ends by itself.
	Run Kind = "run"
	// Up is a demo that stays until it is told to stop. There is one at a time.
	Up Kind = "up"
)

const (
	suffix  = ".json"
	private = 0o700
)

// Record is what is known of a demo.
type Record struct {
	Kind Kind `json:"kind"`
	// Dir is the absolute path of the state directory.
	Dir string `json:"dir"`
	// PID is the process that will clean up.
	PID int `json:"pid"`

	file  string
	alive bool
}

// Alive reports whether the demo was running when the record was read.
func (r *Record) Alive() bool { return r.alive }

// Registry is a directory of records. The zero value is not usable; see Default.
type Registry struct {
	// Dir is created when the first record is made.
	Dir string
}

// Default returns the registry of this user.
func Default() Registry {
	if cache, err := os.UserCacheDir(); err == nil {
		return Registry{Dir: filepath.Join(cache, "clusterring", "demo")}
	}

	return Registry{Dir: filepath.Join(os.TempDir(), "clusterring-demo-records-"+strconv.Itoa(os.Getuid()))}
}

// Claim is a record of this process.
type Claim struct {
	Record
	lock *os.File
}

// Claim makes the state directory, which must not exist or be empty, and a record of it, and keeps that locked until Release
// or the end of the process. An empty dir means a new temporary directory.
func (r Registry) Claim(kind Kind, dir string) (*Claim, error) {
	if err := os.MkdirAll(r.Dir, private); err != nil {
		return nil, fmt.Errorf("make the directory of records: %w", err)
	}

	dir, err := makeDir(dir)
	if err != nil {
		return nil, err
	}

	claim := &Claim{Record: Record{Kind: kind, Dir: dir, PID: os.Getpid(), alive: true}}
	if err := claim.write(r.Dir); err != nil {
		return nil, errors.Join(err, os.Remove(dir))
	}

	return claim, nil
}

func makeDir(dir string) (string, error) {
	if dir == "" {
		dir, err := os.MkdirTemp("", "clusterring-demo-*")
		if err != nil {
			return "", fmt.Errorf("make a state directory: %w", err)
		}

		return dir, nil
	}

	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("find the state directory: %w", err)
	}

	if err := os.MkdirAll(dir, private); err != nil {
		return "", fmt.Errorf("make the state directory: %w", err)
	}

	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", fmt.Errorf("read the state directory: %w", err)
	}

	if len(entries) > 0 {
		return "", fmt.Errorf("state directory %s is not empty: it will be removed in the end, so choose one that does not exist yet", dir)
	}

	return dir, nil
}

// write makes the record, locked from before it can be seen.
func (c *Claim) write(records string) error {
	content, err := json.Marshal(c.Record)
	if err != nil {
		return fmt.Errorf("encode a record: %w", err)
	}

	lock, err := os.CreateTemp(records, string(c.Kind)+"-*")
	if err != nil {
		return fmt.Errorf("make a record: %w", err)
	}

	temporary := lock.Name()

	c.file = temporary + suffix
	if c.Kind == Up {
		c.file = filepath.Join(records, string(Up)+suffix)
	}

	_, err = lock.Write(content)
	if err == nil {
		err = syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	}

	if err == nil {
		err = os.Link(temporary, c.file) // fails where there is a record already, as a rename would not
	}

	if err = errors.Join(err, os.Remove(temporary)); err != nil {
		return errors.Join(fmt.Errorf("make a record: %w", err), lock.Close())
	}

	c.lock = lock

	return nil
}

// Release ends the claim. With keep the record stays, as that of a demo that has ended and left files behind.
func (c *Claim) Release(keep bool) error {
	var err error
	if !keep {
		err = os.Remove(c.file)
	}

	if err = errors.Join(err, c.lock.Close()); err != nil {
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
		if errors.Is(err, os.ErrNotExist) {
			continue // it has ended meanwhile
		}

		if err != nil {
			return nil, err
		}

		records = append(records, record)
	}

	return records, nil
}

// Up returns the record of the demo that stays, nil if there is none.
func (r Registry) Up() (*Record, error) {
	record, err := read(filepath.Join(r.Dir, string(Up)+suffix))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // as documented
	}

	return record, err
}

func read(file string) (*Record, error) {
	in, err := os.Open(file)
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

	switch err := syscall.Flock(int(in.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		record.alive = true
	case err != nil:
		return nil, fmt.Errorf("find out whether the demo of %s runs: %w", file, err)
	}

	return record, nil
}
