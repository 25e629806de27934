package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/plan"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/takeover"
	"github.com/clusterring/clusterring/services/rebalancer/feed"
	"github.com/clusterring/clusterring/services/rebalancer/work"
)

const ring = "example"

var (
	owners   = corev1.SchemeGroupVersion.WithResource("configmaps")
	children = corev1.SchemeGroupVersion.WithResource("secrets")
	shardKey = contract.ShardLabel(ring)
	drainKey = contract.DrainLabel(ring)
	start    = time.Unix(1_000_000_000, 0)
)

// api is an API server with a few objects, and the facts of the next job.
type api struct {
	*testing.T
	feed.Server   // lists and watches are not used
	client.Reader // reads Leases

	stored   map[feed.ID]*metav1.PartialObjectMetadata
	requests []string
	// fails contains the errors of requests, by request: "get configmaps", "patch secrets", "lease", "namespace".
	fails map[string]error
	// admission changes what is written.
	admission func(labels map[string]string)
	leases    []coordinationv1.Lease
	within    time.Duration // the timeout of the last write

	job work.Job
}

func (a *api) ask(what, name string) error {
	a.requests = append(a.requests, what+" "+name)

	return a.fails[what]
}

func (a *api) Get(_ context.Context, id feed.ID) (*metav1.PartialObjectMetadata, error) {
	if err := a.ask("get "+id.GVR.Resource, id.Name); err != nil {
		return nil, err
	}

	if m, ok := a.stored[id]; ok {
		return m.DeepCopy(), nil
	}

	return nil, apierrors.NewNotFound(id.GVR.GroupResource(), id.Name)
}

func (a *api) Patch(ctx context.Context, id feed.ID, body []byte, _ string) (*metav1.PartialObjectMetadata, error) {
	if err := a.ask("patch "+id.GVR.Resource, id.Name); err != nil {
		return nil, err
	}

	if deadline, ok := ctx.Deadline(); ok {
		a.within = time.Until(deadline).Round(time.Second) //nolint:forbidigo // contexts have no other clock
	}

	var patch struct {
		Metadata struct {
			ResourceVersion     string
			Labels, Annotations map[string]*string
		}
	}

	require.NoError(a, json.Unmarshal(body, &patch))

	m, ok := a.stored[id]

	switch {
	case !ok:
		return nil, apierrors.NewNotFound(id.GVR.GroupResource(), id.Name)
	case m.ResourceVersion != patch.Metadata.ResourceVersion:
		return nil, apierrors.NewConflict(id.GVR.GroupResource(), id.Name, nil)
	}

	for k, v := range patch.Metadata.Labels {
		if delete(m.Labels, k); v != nil {
			metav1.SetMetaDataLabel(&m.ObjectMeta, k, *v)
		}
	}

	for k, v := range patch.Metadata.Annotations {
		if delete(m.Annotations, k); v != nil {
			metav1.SetMetaDataAnnotation(&m.ObjectMeta, k, *v)
		}
	}

	if a.admission != nil {
		a.admission(m.Labels)
	}

	m.ResourceVersion += "0"

	return m.DeepCopy(), nil
}

// List reads Leases.
func (a *api) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*coordinationv1.LeaseList).Items = a.leases //nolint:forcetypeassert // otherwise the test fails

	return a.ask("lease", "")
}

// Selects implements [Namespaces].
func (a *api) Selects(context.Context, string, labels.Selector) (bool, error) {
	return true, a.fails["namespace"]
}

// reader and server are the two interfaces of the API server, which have methods of the same names.
type reader struct{ *api }

func (r reader) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return errors.New("Leases are listed")
}

type server struct{ *api }

func (s server) List(context.Context, schema.GroupVersionResource, string,
	metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return nil, errors.New("objects are not listed")
}

func newAPI(t *testing.T) *api {
	t.Helper()

	return &api{
		T: t, stored: map[feed.ID]*metav1.PartialObjectMetadata{}, fails: map[string]error{},
		job: work.Job{Hung: time.Hour, Permit: "a", Related: true, Gathered: work.Gathered{All: true, To: "b"}},
	}
}

func (a *api) mover() *Mover {
	clk := testclock.NewFakeClock(start)

	guard := takeover.New(ring, reader{a}, clk)
	guard.Observe(viewOf("a", "b", "dead"))
	clk.SetTime(start.Add(time.Hour))

	return &Mover{
		Objects: feed.NewClient(server{a}, contract.LabelKeysOf(ring,
			"")), Guard: guard, Clock: clk,
		Lookup: Lookup{Namespaces: a, Ancestors: resources.NewBook(resources.BookOptions{Size: 1, Clock: clk})},
		Free:   func(shard string) { a.requests = append(a.requests, "free "+shard) },
		Moved: func(o feed.Object, verb plan.Verb) {
			a.requests = append(a.requests, fmt.Sprintf("moved %s: %s", o.Name, verb))
		},
	}
}

// move moves an object one step, with the facts of the job.
func (a *api) move(o feed.Object, at *Target) work.Outcome {
	a.job.Object = o

	return a.mover().Move(a.Context(), at, a.job, func() {})
}

func viewOf(shards ...string) *membership.View {
	leases := make([]*coordinationv1.Lease, len(shards))
	for i, name := range shards {
		leases[i] = new(leaseOf(name, name))
	}

	return membership.NewView(ring, leases, nil)
}

func leaseOf(shard, holder string) coordinationv1.Lease {
	return coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: shard,
			Labels: map[string]string{contract.LabelClusterRing: ring}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder},
	}
}

func target() *Target {
	return &Target{
		View:     viewOf("a", "b"),
		Set:      setOf(v1alpha1.ControlledResource{Resource: "secrets"}),
		Leaving:  map[schema.GroupResource]bool{},
		Selector: labels.Everything(),
	}
}

// alone is the set of a ring in which nothing follows the owners.
func alone() *resources.Set { return setOf() }

func setOf(controlled ...v1alpha1.ControlledResource) *resources.Set {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Secret"), meta.RESTScopeNamespace)

	return resources.Resolve(mapper, v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
		Resource: "configmaps", ControlledResources: controlled,
	}}})
}

// ownerAtB returns a name that belongs to b.
func ownerAtB() string {
	for name := "owner"; ; name += "x" {
		if at, _ := target().View.Owner(key.Key{Kind: "ConfigMap", Namespace: "n", Name: name}); at == "b" {
			return name
		}
	}
}

// put stores an object at version 1, with labels in the notation "shard" or "shard drain".
func (a *api) put(gvr schema.GroupVersionResource, name, shard string, drain bool) feed.ID {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "n", Name: name, UID: types.UID("uid of " + name), ResourceVersion: "1", Labels: map[string]string{},
	}}
	if shard != "" {
		m.Labels[shardKey] = shard
	}

	if drain {
		m.Labels[drainKey] = contract.DrainValue
	}

	if gvr == children {
		m.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "v1", Kind: "ConfigMap", Name: ownerAtB(), UID: types.UID("uid of " + ownerAtB()), Controller: new(true),
		}}
	}

	id := feed.ID{GVR: gvr, Namespace: "n", Name: name}
	a.stored[id] = m

	return id
}

func (a *api) seen(id feed.ID) feed.Object {
	return feed.NewClient(server{a}, contract.LabelKeysOf(ring, "")).Object(id.GVR, a.stored[id])
}

// errNotServed is a 404 that proves nothing about the object.
var errNotServed = apierrors.NewGenericServerResponse(http.StatusNotFound, "patch", owners.GroupResource(), "",
	"404 page not found", 0, true)

// expected is the result of a move. A reason is compared only if it is given. The object is written as "shard version",
// or "-" if there is none. An owner that is out of its place is among the requests.
type expected struct {
	object   string
	out      work.Outcome
	requests []string
}

func (a *api) expect(want expected, out work.Outcome) {
	a.Helper()

	object := "-"
	if o := out.Object; o != nil {
		if object = o.Shard + " " + o.ResourceVersion; o.Draining {
			object += " drain"
		}
	}

	require.Equal(a, want.object, object)

	if out.Owner != nil {
		a.requests = append(a.requests, "see "+out.Owner.Name)
	}

	require.Equal(a, want.requests, a.requests)

	if want.out.Reason != "" {
		require.Contains(a, out.Reason, want.out.Reason)
	}

	last := ""

	for _, r := range a.requests {
		if !strings.HasPrefix(r, "moved") && !strings.HasPrefix(r, "see") {
			last = r
		}
	}

	require.Equal(a, strings.HasPrefix(last, "patch"), out.Wrote)

	out.Object, want.out.Object, out.Reason, want.out.Reason, out.Wrote = nil, nil, "", "", false
	out.Owner, out.Version = nil, ""
	require.Equal(a, want.out, out)
}
