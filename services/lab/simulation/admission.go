package simulation

import (
	"context"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/admission"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// assigner is one replica of the assigner. Its knowledge is as old as its watches are.
type assigner struct {
	w    *Cluster
	feed *courier
	// known contains the resources, for all replicas: delays of discovery are not simulated here.
	known *resources.Resolver

	mu     sync.Mutex
	ring   *v1alpha1.ClusterRing
	leases map[types.NamespacedName]*coordinationv1.Lease
	// decides is built from this knowledge when needed; nil if something has changed since.
	decides *admission.Ring
}

func newAssigner(w *Cluster, name string, known *resources.Resolver) *assigner {
	a := &assigner{w: w, feed: newCourier(), known: known, leases: map[types.NamespacedName]*coordinationv1.Lease{}}

	w.server.FollowLeases(name, func(id types.NamespacedName, l *coordinationv1.Lease, lag time.Duration) {
		a.feed.put(lag, func() {
			if renewal := a.leases[id] != nil && l != nil && holderOf(a.leases[id]) == holderOf(l); !renewal {
				a.learn(func() { keep(a.leases, id, l) })
			}
		})
	})
	w.followRing(name, a.feed, func(r *v1alpha1.ClusterRing) { a.learn(func() { a.ring = r }) })

	known.Subscribe(func() { a.learn(func() {}) })

	return a
}

// keep records the current state of a Lease; nil means that it was deleted.
func keep(leases map[types.NamespacedName]*coordinationv1.Lease, id types.NamespacedName, l *coordinationv1.Lease) {
	if l == nil {
		delete(leases, id)
	} else {
		leases[id] = l
	}
}

func (a *assigner) learn(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()

	change()

	a.decides = nil

	if a.ring != nil {
		a.decides = admission.NewRing(admission.Facts{
			Ring: a.ring, Resources: a.known.Resolve(a.ring.Spec), View: viewOf(a.leases),
		})
	}
}

func fingerprintOf(r *v1alpha1.ClusterRing) string {
	if r.Status.Assignment == nil {
		return ""
	}

	return r.Status.Assignment.Fingerprint
}

// admit is the admission of a write. The lock of the server is held.
func (w *Cluster) admit(write apiserver.Write) {
	w.mu.Lock()
	w.assigned, w.admitted, w.drained = false, false, false
	w.mu.Unlock()

	if rekeyed(write) {
		defer w.admitKey(write)
	}

	if strings.HasPrefix(write.Client, "user/around") || len(w.assigners) == 0 {
		return
	}

	w.mu.Lock()
	w.asked++
	a := w.assigners[chance(w.h.Seed, "assigner", w.asked)%uint64(len(w.assigners))]
	fails := w.clock.Now().Before(w.noWebhook)
	team := w.teams[write.Namespace]
	w.mu.Unlock()

	if fails {
		return
	}

	assigned := a.answer(write, team)
	if assigned == nil {
		return
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	w.admitted = true

	if writerOf(write.Client).Name != "" {
		return // where its owner is tells whether the object is misplaced
	}

	// Late knowledge misplaces the object.
	late := w.late(assigned)
	if w.assigned = !late; late {
		w.touch(write.ID)
	}
}

// late reports whether an assigner knows less than there is to know. The lock is held.
func (w *Cluster) late(known *facts) bool {
	return w.ring == nil || w.ring.Generation != known.ring.Generation ||
		w.view().Fingerprint() != known.view.Fingerprint()
}

// admitKey is the admission of a change of the label that may be the key of an object: the second webhook. If it does
// not happen, or by late knowledge, only an audit may find the object.
func (w *Cluster) admitKey(write apiserver.Write) {
	w.mu.Lock()
	w.asked++
	fails := w.clock.Now().Before(w.noWebhook) || strings.HasPrefix(write.Client, "user/around") || len(w.assigners) == 0
	team := w.teams[write.Namespace]

	var a *assigner
	if !fails {
		a = w.assigners[chance(w.h.Seed, "assigner", w.asked)%uint64(len(w.assigners))]
	}
	w.mu.Unlock()

	known, drained := (*facts)(nil), false
	if a != nil {
		known, drained = a.rekey(write, team)
	}

	w.mu.Lock()
	defer w.mu.Unlock()

	if known == nil || w.late(known) {
		w.touch(write.ID)
	} else {
		w.drained = drained
	}
}

// rekey answers a write that changes the key of an object with a shard. It returns the facts of the decision; nil if
// there is none.
func (a *assigner) rekey(write apiserver.Write, team string) (known *facts, drained bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.decides == nil || !a.covers(write, team) ||
		!resources.Recorded(a.ring.Status.Assignment).Has(write.GroupResource) {
		return nil, false
	}

	return &facts{ring: a.ring, view: a.decides.Facts().View}, a.label(write).Drain != ""
}

// label labels an object as the answer of the webhook requires, and returns the answer.
func (a *assigner) label(write apiserver.Write) admission.Answer {
	req := &admission.Request{Ring: ringName, Operation: admission.Update, Resource: write.GroupResource,
		Object: &write.New.ObjectMeta}
	if write.Old != nil {
		req.Old = &write.Old.ObjectMeta
	} else {
		req.Operation, req.Writer = admission.Create, writerOf(write.Client)
	}

	answer := admission.Decide(context.Background(), a.decides, req, stored(write.Stored))
	if answer.RemoveDrain {
		delete(write.New.Labels, drainLabel)
	}

	for label, value := range map[string]string{shardLabel: answer.Shard, drainLabel: answer.Drain} {
		if value != "" {
			metav1.SetMetaDataLabel(&write.New.ObjectMeta, label, value)
		}
	}

	return answer
}

// answer labels an object as the webhook does, if the API server would call it. It returns the facts of the decision;
// nil if there is no label.
func (a *assigner) answer(write apiserver.Write, team string) *facts {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.decides == nil || !a.asked(write, team) || a.label(write).Shard == "" {
		return nil
	}

	return &facts{ring: a.ring, view: a.decides.Facts().View}
}

// asked reports whether the selectors of the webhook configuration select a write. Its match conditions exempt the
// rebalancer, which matters where it removes labels: of objects that the ring no longer selects. It is asked about
// others of its writes, so that it has to cope with the answers.
func (a *assigner) asked(write apiserver.Write, team string) bool {
	_, labelled := write.New.Labels[shardLabel]
	if !labelled && strings.HasPrefix(write.Client, "rebalancer/") {
		return false
	}

	if write.Old != nil && labelled {
		_, labelled = write.Old.Labels[shardLabel]
	}

	if labelled {
		return false
	}

	return a.covers(write, team)
}

// covers reports whether the namespace selector of the webhook configuration selects a write.
func (a *assigner) covers(write apiserver.Write, team string) bool {
	selector, err := metav1.LabelSelectorAsSelector(a.ring.Spec.EffectiveNamespaceSelector())

	return err == nil && (write.Namespace == "" || selector.Matches(labels.Set(namespaceLabels(write.Namespace, team))))
}
