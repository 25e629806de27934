// Package system is what scenarios play with. The demo and the fault runs have a [System]: a control plane, the
// services, and shards of some rings, each a process. Tests on a cluster have pods instead. All have the same users and
// objects, the same records, and the same judgment of what is wrong.
package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/history"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// The namespace of the shards and their service account, as in deploy/example.
const (
	ShardNamespace = "example"
	ShardAccount   = "example-shard"
)

// System is the processes on a control plane, with their logs and histories in one directory. It is safe for concurrent
// use.
type System struct {
	*services.Group
	Plane *localplane.Plane
	// Client has administrator rights.
	Client client.Client
	// Dir contains logs, and histories of reconciles.
	Dir string
	// Rings are what is watched.
	Rings []*Ring

	lives atomic.Int32
}

// New returns a system without services. The options need no directory for logs.
func New(c client.Client, dir string, o services.Options) *System {
	o.LogDir = dir

	return &System{Group: services.New(o), Plane: o.Plane, Client: c, Dir: dir}
}

// History returns the path of a new file for the history of a shard. Each life of a process has one, because a killed
// process may leave an incomplete line.
func (s *System) History(shard string) string {
	return filepath.Join(s.Dir, fmt.Sprintf("history-%s-%d.jsonl", shard, s.lives.Add(1)))
}

// Spans returns the reconciles that a shard has recorded in all of its lives; "*" means all shards.
func (s *System) Spans(shard string) []history.Span {
	files := must.Get(filepath.Glob(filepath.Join(s.Dir, "history-"+shard+"-*.jsonl")))

	return must.Get(history.ReadFiles(files...))
}

// Closed returns spans with an end for each: those that were interrupted end with their process.
func (s *System) Closed(spans []history.Span) []history.Span {
	ended := map[int]time.Duration{}

	for _, p := range s.Started() {
		for _, life := range p.Lives() {
			if !life.Ended.IsZero() {
				ended[life.PID] = record.At(life.Ended)
			}
		}
	}

	return history.Close(spans, ended, record.Now())
}

// Logged returns an error for each process whose log contains one of the words.
func (s *System) Logged(words ...string) error {
	var errs []error

	for _, p := range s.Started() {
		found, err := process.Find(p.LogFile, 1, words...)
		if errs = append(errs, err); len(found) > 0 {
			errs = append(errs, fmt.Errorf("the log of %s has %q", p.Name, found[0]))
		}
	}

	return errors.Join(errs...)
}

// Dump saves what was recorded beside the logs.
func (s *System) Dump(spans []check.Span) error {
	var text []byte

	for _, r := range s.Rings {
		versions, err := r.Versions()
		text = fmt.Appendln(text, "ring", r.Name, err)

		for _, v := range versions {
			text = fmt.Appendln(text, v)
		}
	}

	for _, span := range spans {
		text = fmt.Appendln(text, span)
	}

	for _, m := range s.Members() {
		if m.Proxy == nil {
			continue
		}

		for _, d := range m.Proxy.Done() {
			text = fmt.Appendf(text, "write %s: %s -> %d, version %s, lost %t\n", m.Name, d.Write, d.Status, d.ResourceVersion,
				d.Lost)
		}
	}

	if err := os.WriteFile(filepath.Join(s.Dir, "records.txt"), text, 0o600); err != nil {
		return fmt.Errorf("save the records: %w", err)
	}

	return nil
}

// Of returns the spans of a process, and the number of those that have not ended.
func Of(all []history.Span, pid int) (spans []history.Span, open int) {
	for _, span := range all {
		if span.PID != pid {
			continue
		}

		spans = append(spans, span)
		if span.End == 0 {
			open++
		}
	}

	return spans, open
}

// Live returns the newest versions of the objects that exist, without Leases.
func Live(newest []check.Version) []check.Version {
	return slices.DeleteFunc(newest, func(v check.Version) bool { return v.Deleted || v.Kind == check.Lease })
}
