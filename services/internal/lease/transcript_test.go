package lease_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/services/internal/lease"
	"github.com/clusterring/clusterring/tools/testkit/transcript"
)

const shard = "web-0"

// TestTranscripts plays each file in testdata: at a given time, an event happens to the Lease of shard web-0, and then
// an observer looks at it. The test compares the result with the rest of the line. The events are:
//
//	hold               the shard acquires or renews its Lease, with the duration and clock that it has
//	release            the shard gives its Lease up
//	take               the Lease is taken from the shard, as the decision to acquire demands
//	keep               the Lease is renewed, as the decision to renew demands
//	label              somebody changes labels of the Lease
//	edit FIELD=VALUE   somebody changes a field: holder, duration (seconds), renewTime (seconds, by the shard's clock)
//	look               nothing happens
//	clock OFFSET       the shard's clock now differs from the observer's by the offset
//	restart            the observer forgets everything
//	cut                the observer cannot see the API server any more, or is frozen
//	back               it can again
//	moving, moved      objects of the shard are to be moved from now on, or no more
//	together           most shards of the ring are silent, too
//	end                somebody deletes the Lease, and a finalizer keeps it
//	delete             the Lease is deleted, and created anew with the next event
func TestTranscripts(t *testing.T) {
	transcript.Run(t, func(t *testing.T) transcript.Player {
		t.Helper()

		w := newWorld()

		return transcript.Player{
			Header: func() string {
				return fmt.Sprintf(layout, "time", "event", "state", "available", "action", "check after")
			},
			Step: func(at, event string) string { return w.step(t, at, event) },
		}
	})
}

const layout = "%-10s %-36s %-10s %-10s %-8s %s"

// world is a shard, its Lease, and an observer.
type world struct {
	start    time.Time // by the observer's clock
	offset   time.Duration
	lease    *coordinationv1.Lease
	observer *lease.Observer

	seen             time.Duration // the last look at the API server
	cut              bool
	moving, together bool
}

func newWorld() *world {
	w := &world{start: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), observer: observer()}
	w.see(0)
	w.create()

	return w
}

func observer() *lease.Observer { return &lease.Observer{Sight: &lease.Sight{}} }

// see lets the observer look at the API server, every second and at the end.
func (w *world) see(until time.Duration) {
	for ; !w.cut && w.seen < until; w.seen += time.Second {
		w.observer.Sight.Saw(w.start.Add(w.seen), w.start.Add(w.seen))
	}

	if w.seen = until; !w.cut {
		w.observer.Sight.Saw(w.start.Add(until), w.start.Add(until))
	}
}

func (w *world) create() {
	w.lease = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: shard}}
	w.lease.Spec.LeaseDurationSeconds = new(int32(15))
}

func (w *world) step(t *testing.T, at, event string) string {
	t.Helper()

	elapsed, err := time.ParseDuration(at)
	require.NoError(t, err)

	now := w.start.Add(elapsed)
	w.see(elapsed)
	w.happen(t, event, now)
	w.see(elapsed)

	id := types.NamespacedName{Namespace: w.lease.Namespace, Name: w.lease.Name}
	record := lease.RecordOf(w.lease)
	seen := w.observer.Look(id, record, now)
	snapshot := lease.Snapshot{
		Shard: w.lease.Name, Record: record, Kept: seen.Kept,
		Moving: w.moving, Together: w.together, Deleting: !w.lease.DeletionTimestamp.IsZero(),
	}
	d := lease.Next(snapshot, seen.Age)

	available := map[bool]string{true: "yes", false: "no"}[d.State.Available()]

	action, wait := string(d.Action), d.CheckAfter.String()
	if d.Action == lease.None {
		action = "-"
	}

	if d.CheckAfter == 0 {
		wait = "-"
	}

	return fmt.Sprintf(layout, at, event, d.State, available, action, wait)
}

func (w *world) happen(t *testing.T, event string, now time.Time) {
	t.Helper()

	verb, argument, _ := strings.Cut(event, " ")
	spec, clock := &w.lease.Spec, metav1.NewMicroTime(now.Add(w.offset))

	switch verb {
	case "hold":
		if ptr.Deref(spec.HolderIdentity, "") != shard {
			spec.HolderIdentity, spec.AcquireTime = new(shard), &clock
			spec.LeaseTransitions = new(ptr.Deref(spec.LeaseTransitions, 0) + 1)
			spec.LeaseDurationSeconds = new(int32(15))
		}

		spec.RenewTime = &clock
	case "release": // as client-go's leader election does
		spec.HolderIdentity, spec.LeaseDurationSeconds = new(""), new(int32(1))
		spec.AcquireTime, spec.RenewTime = &clock, &clock
	case "take":
		seen := w.observer.Look(types.NamespacedName{Namespace: w.lease.Namespace, Name: shard}, lease.RecordOf(w.lease), now)
		d := lease.TakenFor(lease.Snapshot{Shard: shard, Record: lease.RecordOf(w.lease)}, seen.Own)
		w.lease = lease.Acquired(w.lease, d, now)
	case "keep":
		w.lease = lease.Renewed(w.lease, now)
	case "cut", "back":
		w.cut = verb == "cut"
	case "moving", "moved":
		w.moving = verb == "moving"
	case "together":
		w.together = true
	case "end":
		w.lease.DeletionTimestamp = new(metav1.NewTime(now))
	case "label":
		metav1.SetMetaDataLabel(&w.lease.ObjectMeta, "touched", strconv.FormatInt(now.Unix(), 10))
	case "edit":
		w.edit(t, argument)
	case "clock":
		offset, err := time.ParseDuration(argument)
		require.NoError(t, err)

		w.offset = offset
	case "restart":
		w.observer = observer()
	case "delete":
		w.observer.Forget(types.NamespacedName{Namespace: w.lease.Namespace, Name: w.lease.Name})
		w.create()
	case "look":
	default:
		require.FailNow(t, "unknown event", event)
	}
}

func (w *world) edit(t *testing.T, assignment string) {
	t.Helper()

	field, value, _ := strings.Cut(assignment, "=")
	spec := &w.lease.Spec
	number, err := strconv.ParseInt(value, 10, 32)
	absent := value == "none"

	switch field {
	case "holder":
		spec.HolderIdentity = new(value)
		if absent {
			spec.HolderIdentity = nil
		}
	case "duration":
		spec.LeaseDurationSeconds = new(int32(number))
		if absent {
			spec.LeaseDurationSeconds = nil
		}
	case "renewTime":
		spec.RenewTime = new(metav1.NewMicroTime(w.start.Add(w.offset + time.Duration(number)*time.Second)))
		if absent {
			spec.RenewTime = nil
		}
	default:
		require.FailNow(t, "unknown field", field)
	}
	require.True(t, absent || field == "holder" || err == nil, "edit %s: %v", assignment, err)
}
