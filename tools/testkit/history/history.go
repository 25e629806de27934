// Package history records when which shard worked on which object, so that a test can prove that no two shards worked
// on one object at the same time. A controller needs none of it.
//
// It writes one line of JSON when a reconcile starts and one when it ends, each in a single write to a file opened for
// appending. A process that is killed leaves starts without ends. [Reader] reads these lines into [Span]s, and
// [Overlaps] finds spans that must not overlap but do.
package history

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Values of [Entry].Event.
const (
	// Start is written before the reconciler is called.
	Start = "start"
	// End is written after the reconciler has returned.
	End = "end"
)

// Entry is one line.
type Entry struct {
	// Event is Start or End.
	Event string `json:"event"`
	// Sequence numbers the reconciles of one process; an end has the number of its start.
	Sequence uint64 `json:"sequence"`
	// Process identifies the process on its machine.
	Process int `json:"process"`
	// Shard is the name of the shard.
	Shard string `json:"shard"`
	// Controller is the name of the controller.
	Controller string `json:"controller"`
	// Kind, Namespace, Name, and UID identify the object.
	Kind      string    `json:"kind"`
	Namespace string    `json:"namespace,omitempty"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	Stamp
	// Error is the error that the reconciler returned; only in an end.
	Error string `json:"error,omitempty"`
}

// Stamp is a point in time.
type Stamp struct {
	// Time by the wall clock.
	Time time.Time `json:"time"`
	// Monotonic is the time since the machine started, in nanoseconds. It never jumps and is the same for all processes of
	// one machine: order by it.
	Monotonic int64 `json:"monotonic"`
}

// Recorder writes the history of one process. It is safe for concurrent use. The zero value is not usable.
type Recorder struct {
	process  int
	shard    func() string
	now      func() Stamp
	sequence atomic.Uint64

	mu  sync.Mutex
	out io.Writer
}

// NewRecorder returns a recorder for the process with the given number, and the shard whose name the function returns.
// Each line is one call of out.Write.
func NewRecorder(out io.Writer, process int, shard func() string, now func() Stamp) *Recorder {
	return &Recorder{process: process, shard: shard, now: now, out: out}
}

// Subject is what a controller reconciles.
type Subject struct {
	// Controller is the controller's name.
	Controller string
	// Object is an empty object of the kind.
	Object client.Object
	// Reader determines the object's UID; the manager's cached client is sufficient.
	Reader client.Client
}

// Reconciler wraps a reconciler so that its work is recorded. If the object is not in the cache, there is nothing to
// work on, and the reconciler is called without a record. If a start cannot be written, the reconciler is not called:
// no work goes unrecorded.
func (r *Recorder) Reconciler(s Subject, inner reconcile.Reconciler) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		began := r.now() // here, and not when it is written: a process can be frozen in between
		obj, _ := s.Object.DeepCopyObject().(client.Object)

		gvk, err := s.Reader.GroupVersionKindFor(obj)
		if err != nil {
			return reconcile.Result{}, fmt.Errorf("record the reconcile: %w", err)
		}

		if err := s.Reader.Get(ctx, req.NamespacedName, obj); err != nil {
			if client.IgnoreNotFound(err) == nil {
				return inner.Reconcile(ctx, req)
			}

			return reconcile.Result{}, fmt.Errorf("record the reconcile: %w", err)
		}

		entry := Entry{
			Sequence: r.sequence.Add(1), Process: r.process, Shard: r.shard(), Controller: s.Controller, Kind: gvk.Kind,
			Namespace: req.Namespace, Name: req.Name, UID: obj.GetUID(),
		}
		if err := r.write(Start, began, entry, nil); err != nil {
			return reconcile.Result{}, err
		}

		result, err := inner.Reconcile(ctx, req)
		if writeErr := r.write(End, r.now(), entry, err); writeErr != nil {
			return reconcile.Result{}, writeErr
		}

		return result, err //nolint:wrapcheck // passed on
	})
}

func (r *Recorder) write(event string, at Stamp, e Entry, err error) error {
	e.Event, e.Stamp = event, at
	if err != nil {
		e.Error = err.Error()
	}

	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode the history: %w", err)
	}

	r.mu.Lock()
	defer r.mu.Unlock()

	if _, err := r.out.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("write the history: %w", err)
	}

	return nil
}

// Now returns the present time by both clocks.
func Now() Stamp {
	return Stamp{Time: time.Now(), Monotonic: int64(Monotonic())}
}

// Monotonic returns the time since the start of the machine, which is the same for all processes.
func Monotonic() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // all supported systems have this clock
	}

	return time.Duration(ts.Nano())
}

// Open opens a file for records, and creates it if it does not exist. Each write is appended as a whole, even if other
// processes write to the file. The path "-" is standard output, which must contain nothing else from this process: the
// log of a Pod then contains the history between the log messages. It stays open until the process ends.
func Open(path string) (io.Writer, error) {
	if path == "-" {
		return os.Stdout, nil
	}

	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644) //nolint:gosec // the user's choice
	if err != nil {
		return nil, fmt.Errorf("open the file of records: %w", err)
	}

	return file, nil
}

// Delay makes every reconcile take longer by the given time, so that overlaps become visible, if there are any. The
// added work respects its context.
func Delay(clock clock.Clock, duration time.Duration, inner reconcile.Reconciler) reconcile.Reconciler {
	if duration <= 0 {
		return inner
	}

	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		timer := clock.NewTimer(duration)
		defer timer.Stop()

		select {
		case <-timer.C():
		case <-ctx.Done():
			return reconcile.Result{}, context.Cause(ctx)
		}

		return inner.Reconcile(ctx, req)
	})
}
