package shardlease

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
)

// news is something that happened to a shard and that a person should see.
type news struct {
	kind, reason, action, note, log string
}

// The news that there are. Notes take the shard and the age of its Lease.
var (
	failed = news{
		kind:   corev1.EventTypeWarning,
		reason: "ShardFailed",
		action: "TakeOver",
		note:   "Shard %s has not renewed its Lease for %s: took the Lease over, its objects go to other shards",
		log:    "Shard failed: took its Lease over",
	}
	collected = news{
		kind:   corev1.EventTypeNormal,
		reason: "ShardCollected",
		action: "Delete",
		note:   "Shard %s has not held its Lease for %s: deleted the Lease",
		log:    "Shard is gone: deleted its Lease",
	}
)

// announce tells people, by an event on the ring or, where there is no such ring, on the Lease.
func (r *Reconciler) announce(ctx context.Context, judged *judgement, n news) {
	ctrllog.FromContext(ctx).Info(n.log, "ring", judged.ring(), "unchangedFor", judged.age.String())

	id := client.ObjectKeyFromObject(judged.lease).String()

	ring := &v1alpha1.ClusterRing{}
	if err := r.Client.Get(ctx, types.NamespacedName{Name: judged.ring()}, ring); err != nil {
		r.Events.Eventf(judged.lease, nil, n.kind, n.reason, n.action, n.note, id, judged.age)
		return
	}

	r.Events.Eventf(ring, judged.lease, n.kind, n.reason, n.action, n.note, id, judged.age)
}
