package clusterring

import (
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/utils/ptr"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// absentFor is how long there must have been no election Lease at all before a ring is taken from the embedded sharder
// that holds it: longer than such a sharder works without its Lease.
const absentFor = 2 * time.Minute

// Waiting is what a sharder remembers while it waits for other holders of rings. It decides when a holder whose
// election Lease is not renewed no longer works. The zero value waits for nobody. It is safe for concurrent use.
type Waiting struct {
	mu sync.Mutex
	on map[string]*wait
}

// wait is the wait for one holder, whose election Lease has been at this version since then.
type wait struct {
	holder  Identity
	version string
	since   time.Time
}

// Begin begins to wait for the ring's present holder. It returns the holder, and whether that is news.
func (w *Waiting) Begin(ring *v1alpha1.ClusterRing) (holder Identity, news bool) {
	w.mu.Lock()
	defer w.mu.Unlock()

	holder, _ = HolderOf(ring)

	if known := w.on[ring.Name]; known != nil && known.holder == holder {
		return holder, false
	}

	if w.on == nil {
		w.on = map[string]*wait{}
	}

	w.on[ring.Name] = &wait{holder: holder}

	return holder, true
}

// Left returns how long the ring's holder may still work, according to its election Lease as it was read at the given
// time; zero or less if it does not work anymore. elected is nil if there is no such Lease. Call Begin before.
func (w *Waiting) Left(ring string, elected *coordinationv1.Lease, now time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()

	known, version, lasts := w.on[ring], "absent", absentFor

	if elected != nil {
		if ptr.Deref(elected.Spec.HolderIdentity, "") == "" {
			return 0 // the sharder has released it after its last write
		}

		version = string(elected.UID) + "/" + elected.ResourceVersion // changes with every renewal

		if d := elected.Spec.LeaseDurationSeconds; d != nil {
			lasts = time.Duration(*d) * time.Second
		}
	}

	if known.version != version {
		known.version, known.since = version, now
	}

	return known.since.Add(lasts).Sub(now)
}

// End ends the wait for the holder of a ring.
func (w *Waiting) End(ring string) {
	w.mu.Lock()
	defer w.mu.Unlock()

	delete(w.on, ring)
}
