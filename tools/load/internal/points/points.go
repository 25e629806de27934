// Package points keeps what was measured as data: a file with one point per line, as JSON. A run that was interrupted
// goes on where it has ended, and one that repeats a part of another adds to its points.
package points

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Key identifies a point.
type Key struct {
	// Experiment is what was measured. Sharder is what assigned the objects meanwhile.
	Experiment, Sharder string
	// X is what the experiment varies: the number of shards, or a rate.
	X int
	// Round counts the repetitions, from 0.
	Round int
}

// Point is the result of a trial.
type Point struct {
	Key

	// Values are the figures by name.
	Values map[string]float64
	// Invalid tells why nothing can be concluded from the values: it is empty if they count.
	Invalid []string `json:",omitempty"`
	// Version is that of the binaries.
	Version string
}

// File is the file of the points. It is for one goroutine.
type File struct {
	path, version string
	all           []Point
}

// Open reads the points of a version in a file, which need not exist. Those that are added have this version.
func Open(path, version string) (*File, error) {
	f := &File{path: path, version: version}

	data, err := os.ReadFile(path) //nolint:gosec // that of the user
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the points of earlier runs: %w", err)
	}

	for line := range bytes.Lines(data) {
		if p := (Point{}); json.Unmarshal(line, &p) == nil && p.Version == version { // an error: its writer was killed
			f.keep(p)
		}
	}

	return f, nil
}

// keep keeps a point instead of an earlier one with its key.
func (f *File) keep(p Point) {
	f.all = append(slices.DeleteFunc(f.all, func(other Point) bool { return other.Key == p.Key }), p)
	slices.SortStableFunc(f.all, func(a, b Point) int { return cmp.Compare(a.Round, b.Round) })
}

// Has reports whether there is a point that counts: one that does not is measured again.
func (f *File) Has(key Key) bool {
	return slices.ContainsFunc(f.all, func(p Point) bool { return p.Key == key && len(p.Invalid) == 0 })
}

// Add adds a point to the file.
func (f *File) Add(p Point) error {
	p.Version = f.version

	line, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode a point: %w", err)
	}

	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return fmt.Errorf("add a point: %w", err)
	}

	//nolint:gosec // for everybody to read
	to, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return fmt.Errorf("add a point: %w", err)
	}

	_, err = fmt.Fprintf(to, "\n%s", line) // the last line may be incomplete
	f.keep(p)

	return errors.Join(err, to.Close())
}

// Of returns a value of the points of an experiment, by round: only of those that count, if any does. Of the rest it
// returns why they do not.
func (f *File) Of(experiment, sharder string, x int, value string) (values []float64, invalid []string) {
	var others []float64

	for _, p := range f.all {
		v, ok := p.Values[value]
		switch {
		case p.Experiment != experiment || p.Sharder != sharder || p.X != x || !ok:
		case len(p.Invalid) > 0:
			others, invalid = append(others, v), append(invalid, strings.Join(p.Invalid, ", "))
		default:
			values = append(values, v)
		}
	}

	if len(values) == 0 {
		values = others
	}

	return values, invalid
}

// Xs returns what an experiment has varied, in order.
func (f *File) Xs(experiment, sharder string) (all []int) {
	for _, p := range f.all {
		if p.Experiment == experiment && p.Sharder == sharder {
			all = append(all, p.X)
		}
	}
	slices.Sort(all)

	return slices.Compact(all)
}

// String returns the figures, rounded.
func (p Point) String() string {
	var figures []string
	for _, name := range slices.Sorted(maps.Keys(p.Values)) {
		figures = append(figures, fmt.Sprintf("%s %.4g", name, p.Values[name]))
	}

	return fmt.Sprintf("%s, %s, %d, round %d: %s %s", p.Experiment, p.Sharder, p.X, p.Round+1,
		strings.Join(figures, "; "), strings.Join(p.Invalid, ", "))
}
