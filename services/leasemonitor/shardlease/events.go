package shardlease

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
)

// news is something that happened to a shard and that a person should see.
type news struct {
	kind, reason, action, note, log string
}

// The news that there are. Notes take the shard and the age of its Lease, but for doubted, which takes two numbers.
var (
	failed = news{
		kind:   corev1.EventTypeWarning,
		reason: "ShardFailed",
		action: "TakeOver",
		note:   "Shard %s has not renewed its Lease for %s: took over the Lease, its objects go to other shards",
		log:    "Shard failed: took over its Lease",
	}
	ended = news{
		kind:   corev1.EventTypeWarning,
		reason: "ShardEnded",
		action: "TakeOver",
		note:   "The kubelet has reported that the Pod of shard %s has ended, %s after its last renewal: took over its Lease, its objects go to other shards",
		log:    "The Pod of a shard has ended: took over its Lease",
	}
	kept = news{
		kind:   corev1.EventTypeNormal,
		reason: "LeaseKept",
		action: "TakeOver",
		note:   "Shard %s has released its Lease and not taken it back for %s: took the Lease while its objects go to other shards",
		log:    "Shard has not come back: took its Lease while its objects move",
	}
	doubted = news{
		kind:   corev1.EventTypeWarning,
		reason: "ManyShardsSilent",
		action: "Wait",
		note: "%d of %d shards have stopped renewing their Leases at the same time, which may have another cause: " +
			"taking the Leases of shards that stay silent for another lease duration",
	}
	collected = news{
		kind:   corev1.EventTypeNormal,
		reason: "ShardCollected",
		action: "Delete",
		note:   "Shard %s has not held its Lease for %s: deleted the Lease",
		log:    "Shard is gone: deleted its Lease",
	}
)

// announceDoubt tells people that most shards of the ring fell silent at once.
func (r *Reconciler) announceDoubt(ctx context.Context, judged *judgement, silent, of int) {
	ctrllog.FromContext(ctx).Info("Most shards of a ring fell silent at the same time: waiting before taking their Leases",
		"ring", judged.ring(), "silent", silent, "shards", of)
	r.tell(ctx, judged, doubted, silent, of)
}

// announce tells people, by an event on the ring.
func (r *Reconciler) announce(ctx context.Context, judged *judgement, n news) {
	ctrllog.FromContext(ctx).Info(n.log, "ring", judged.ring(), "unchangedFor", judged.seen.Age.String())

	r.tell(ctx, judged, n, client.ObjectKeyFromObject(judged.lease).String(), judged.seen.Age)
}

func (r *Reconciler) tell(ctx context.Context, judged *judgement, n news, args ...any) {
	ring, err := r.ringOf(ctx, judged.ring())
	if err != nil || ring.Name == "" {
		return // it has just been deleted
	}

	r.Events.Eventf(ring, judged.lease, n.kind, n.reason, n.action, n.note, args...)
}
