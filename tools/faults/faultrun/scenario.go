package faultrun

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	"google.golang.org/grpc/metadata"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/checksum"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/kubelettest"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Phase is a phase of the scenario.
type Phase string

// The phases in their order. Each ends when all objects are in place.
const (
	// Begin: the services and three shards of each ring start. Eight Websites are created in each namespace, two of them
	// with generated names.
	Begin Phase = "begin"
	// Join: a fourth shard joins each ring. In each namespace, a Website is created, one changed, and one deleted.
	Join Phase = "join"
	// Fail: a shard of each ring is killed for good, and another one stops. In each namespace, a Website is created, and
	// some are changed.
	Fail Phase = "fail"
	// Delete: the last ring is deleted. Other rings remain.
	Delete Phase = "delete"
)

// scenario lists the phases of a run.
var scenario = []struct {
	phase Phase
	play  func(context.Context, *Run)
}{
	{Begin, begin}, {Join, join}, {Fail, fail}, {Delete, deleteRing},
}

func begin(ctx context.Context, run *Run) {
	later := map[string]bool{}

	for _, r := range run.rings {
		created := r.manifest()
		must.Do(run.client.Create(ctx, created))

		r.uid = created.UID
		later[r.Shards[len(r.Shards)-1]] = true
	}

	for _, m := range run.members {
		if !later[m.Name] {
			run.Start(m)
		}
	}

	run.Await(ctx, "three shards hold their Leases and the rings are ready", run.ready)

	for _, namespace := range run.namespaces() {
		for i := range 6 {
			run.createIn(ctx, namespace, system.Site(i))
		}

		run.createIn(ctx, namespace, "")
		run.createIn(ctx, namespace, "")
	}

	for _, r := range run.rings {
		for _, namespace := range r.Namespaces {
			for i := range r.Fleets {
				system.Asked(run.client.Create(ctx, system.Fleet(namespace, i)))
			}
		}
	}
}

func join(ctx context.Context, run *Run) {
	for _, r := range run.rings {
		run.Start(run.Member(r.Shards[len(r.Shards)-1]))
	}

	for _, namespace := range run.namespaces() {
		run.createIn(ctx, namespace, "site-6")
		run.editIn(ctx, namespace, "site-0")
		system.Asked(run.client.Delete(ctx, system.Website(namespace, "site-1")))
	}
}

func fail(ctx context.Context, run *Run) {
	for _, r := range run.rings {
		run.Expect(r.Shards[0], false)
		run.Expect(r.Shards[1], false)
		must.Do(run.Member(r.Shards[0]).Process().Destroy())
	}

	for _, namespace := range run.namespaces() {
		run.createIn(ctx, namespace, "site-7")
		run.editIn(ctx, namespace, "site-2")
		run.editIn(ctx, namespace, "site-6")
	}

	for _, r := range run.rings {
		must.Do(run.Member(r.Shards[1]).Process().Stop(stopTimeout))
	}
}

// deleteRing deletes the last ring and waits until nothing of it is left. Objects of other rings must stay in place.
func deleteRing(ctx context.Context, run *Run) {
	r := run.rings[len(run.rings)-1]
	r.ended = record.Now()
	must.Do(run.client.Delete(ctx, r.manifest()))
	run.Await(ctx, "nothing is left of the deleted ring (I8)", func(ctx context.Context) {
		err := run.client.Get(ctx, client.ObjectKeyFromObject(r.manifest()), r.manifest())
		must.Do(client.IgnoreNotFound(err))
		must.Hold(err != nil, "the ring is still there")

		var webhooks admissionregistrationv1.MutatingWebhookConfigurationList
		must.Do(run.client.List(ctx, &webhooks, client.MatchingLabels{contract.LabelClusterRing: r.Name}))
		must.Hold(len(webhooks.Items) == 0, "%d webhook configurations are still there", len(webhooks.Items))
		must.None("there are still labels", slices.DeleteFunc(r.watched.Newest(), func(v check.Version) bool {
			return v.Deleted || v.Shard == "" && !v.Draining
		}))
	})
}

// TouchFleet gives its shard work on one of the first ring's Fleets, whose number may be any.
func (run *Run) TouchFleet(ctx context.Context, number int) {
	fleet := system.Fleet(run.rings[0].Namespaces[0], number%run.rings[0].Fleets)
	run.annotate(ctx, fleet, "touched", record.Now().String()) // which no controller reads
}

// Create creates a Website.
func (run *Run) Create(ctx context.Context, name string) { run.createIn(ctx, Namespace, name) }

// createIn creates a Website. If name is empty, the name is generated.
func (run *Run) createIn(ctx context.Context, namespace, name string) {
	site := system.Website(namespace, name)
	site.GenerateName = "generated-" // without a name
	system.Asked(run.client.Create(ctx, site))
}

// Edit changes the spec of a Website.
func (run *Run) Edit(ctx context.Context, name string) { run.editIn(ctx, Namespace, name) }

func (run *Run) editIn(ctx context.Context, namespace, name string) {
	system.Asked(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		site := &examplev1alpha1.Website{}
		if err := run.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, site); err != nil {
			return err //nolint:wrapcheck // wrapped below
		}

		site.Spec.Body += "more "

		return run.client.Update(ctx, site)
	}))
}

// ClearChecksum makes the second controller of the example write the ConfigMap of a Website again, without work for the
// first one.
func (run *Run) ClearChecksum(ctx context.Context, name string) {
	run.annotate(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name}},
		checksum.Annotation, nil)
}

// annotate sets an annotation of an object; nil removes it.
func (run *Run) annotate(ctx context.Context, object client.Object, key string, value any) {
	patch := must.Get(json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}}))
	system.Asked(run.client.Patch(ctx, object, client.RawPatch(types.MergePatchType, patch)))
}

// announce reads the Pod of a shard whose Lease announces it.
func (run *Run) announce(ctx context.Context, m *Member) {
	if m.announced {
		m.pod = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system.ShardNamespace, Name: m.Name}}
		must.Do(run.client.Get(ctx, client.ObjectKeyFromObject(m.pod), m.pod))
	}
}

// Report writes the status of the shard's Pod, whose container has terminated. The reason is that of the condition
// ContainersReady: the kubelet reports the end of a Pod with PodFailed.
func (run *Run) Report(ctx context.Context, m *Member, phase corev1.PodPhase, reason string) {
	m.pod.Status = kubelettest.Status(phase, reason, kubelettest.Killed())
	must.Do(run.client.Status().Update(ctx, m.pod))
}

// DeletePod deletes the shard's Pod without asking the kubelet. Its token is no longer valid.
func (run *Run) DeletePod(ctx context.Context, m *Member) {
	must.Do(run.client.Delete(ctx, m.pod, client.GracePeriodSeconds(0)))
}

// Replace starts the shard in a new Pod of the same name. The previous Pod must have been deleted, and its process must
// have ended.
func (run *Run) Replace(ctx context.Context, m *Member) {
	must.Get(run.system.Authenticate(ctx, m.Member))
	run.announce(ctx, m)
	run.Start(m)
}

// HasEvent reports whether somebody has reported an event of the reason about a ring of the run.
func (run *Run) HasEvent(ctx context.Context, reason string) bool {
	events := &eventsv1.EventList{}
	must.Do(run.client.List(ctx, events))

	return slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
		return e.Reason == reason && slices.ContainsFunc(run.rings, func(r *ring) bool { return r.uid == e.Regarding.UID })
	})
}

// Update replaces the Pod old by the Pod next, as a rolling update does: the next one starts, and when it waits for a
// slot, the old one stops. It returns when the next one holds a slot. Both are shards of a ring with slots.
func (run *Run) Update(ctx context.Context, old, next *Member) {
	run.Start(next)
	run.AwaitStandby(ctx, next)
	run.Expect(old.Name, false)
	must.Do(old.Process().Stop(stopTimeout))
	run.AwaitSlot(ctx, next)
}

// AwaitStandby waits until the Pod waits for a slot.
func (run *Run) AwaitStandby(ctx context.Context, m *Member) {
	run.awaitLease(ctx, m, contract.LabelStandby,
		func(l *coordinationv1.Lease) bool { return *l.Spec.HolderIdentity == m.Name })
}

// AwaitSlot waits until the Pod holds a slot.
func (run *Run) AwaitSlot(ctx context.Context, m *Member) {
	run.awaitLease(ctx, m, contract.LabelClusterRing, func(l *coordinationv1.Lease) bool {
		holder := l.Spec.HolderIdentity

		return holder != nil && *holder == l.Name && l.Annotations[contract.AnnotationPod] == m.Name &&
			l.Annotations[contract.AnnotationOffered] == ""
	})
}

func (run *Run) awaitLease(ctx context.Context, m *Member, label string, is func(*coordinationv1.Lease) bool) {
	run.Await(ctx, "Pod "+m.Name+" has a Lease with label "+label, func(ctx context.Context) {
		leases := &coordinationv1.LeaseList{}
		must.Do(run.client.List(ctx, leases, client.InNamespace(system.ShardNamespace), client.MatchingLabels{label: m.ring}))

		var found []string

		for i := range leases.Items {
			l := &leases.Items[i]
			if is(l) {
				return
			}

			found = append(found, fmt.Sprintf("%s: %v %v", l.Name, l.Spec.HolderIdentity, l.Annotations))
		}

		must.Do(fmt.Errorf("it is none of %v", found))
	})
}

// DeleteLease deletes the Lease of a shard.
func (run *Run) DeleteLease(ctx context.Context, name string) {
	must.Do(run.client.Delete(ctx,
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: system.ShardNamespace, Name: name}}))
}

// OwnersAgree waits until every replica of ringquery agrees with the labels of all objects of the remaining rings (I3).
func (run *Run) OwnersAgree(ctx context.Context) {
	must.Hold(len(run.queries) > 0, "this case has no ringquery")

	over, stop := context.WithCancel(ctx)
	defer stop()

	var replicas []diagnosticsv1alpha1.DiagnosticsServiceClient
	for _, address := range run.queries {
		replicas = append(replicas, system.Queries(over, address))
	}

	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+run.token)
	run.Await(ctx, "every ringquery agrees with all labels (I3)", func(ctx context.Context) {
		for _, r := range run.left() {
			located, problems := r.watched.Disagreements(ctx, replicas...)
			must.None(r.Name, problems)
			must.Hold(located > 0, "%s: no objects to locate", r.Name)
		}
	})
}
