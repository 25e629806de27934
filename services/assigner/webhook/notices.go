package webhook

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
)

const (
	// noticeEvery is how often an event says that labels of a ring are put back. A tool that changes them does so with each of its writes.
	noticeEvery = 10 * time.Minute
	// maxNoticed is of how many rings it is remembered that there was an event.
	maxNoticed = 1000
)

// Notices tells people, by an event on the ring, who changes shard labels that the assigner puts back. Create it with [NewNotices]. It is safe for
// concurrent use.
type Notices struct {
	rings    client.Reader
	recorder events.EventRecorder
	recent   *cache.LRUExpireCache
}

// NewNotices returns what writes events with the recorder, about rings that it reads from rings, which should be a cache.
func NewNotices(rings client.Reader, recorder events.EventRecorder, clk clock.Clock) *Notices {
	return &Notices{rings: rings, recorder: recorder, recent: cache.NewLRUExpireCacheWithClock(maxNoticed, clk)}
}

// restored takes note of a write whose author lost a label that the assigner has put back. It does nothing for dry runs, or if there was an event lately.
func (n *Notices) restored(ctx context.Context, req *admission.Request) {
	if _, recent := n.recent.Get(req.Ring); recent || req.DryRun {
		return
	}

	n.recent.Add(req.Ring, nil, noticeEvery)

	ring := &v1alpha1.ClusterRing{}
	if err := n.rings.Get(ctx, client.ObjectKey{Name: req.Ring}, ring); err != nil {
		return // it has just been deleted
	}

	name := client.ObjectKey{Namespace: req.Object.Namespace, Name: req.Object.Name}
	n.recorder.Eventf(ring, nil, corev1.EventTypeWarning, "LabelRestored", "Restore",
		"%.128s changes or removes the label %s, now of %s %s. Only the ring changes it, so the assigner puts it back: leave the label out of manifests and backups",
		req.Author, ring.LabelKeys().Shard, req.Resource, name)
}
