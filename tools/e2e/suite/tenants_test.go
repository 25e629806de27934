package suite_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	shardingv1alpha1 "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
)

const (
	// forgeries is the number of Leases that each tenant tries to create.
	forgeries = 9
	// flooding is the time between two writes of a flood; each kind of flood writes one after the other.
	flooding = 20 * time.Millisecond
	// stuckFinalizer keeps an owner from being deleted.
	stuckFinalizer = "example.com/stuck"
	// drowned is the number of a tenant's Websites that its floods change.
	drowned = 20
)

// tenants attacks a ring with the rights of the ClusterRole edit: in a namespace that the ring covers, and in the
// namespace of the shards themselves. Meanwhile, other objects of the ring are created and changed, and a shard is
// added. They keep all promises.
func (s *suite) tenants(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	oneAtATime := s.follow(t, cluster.NewRing("e2e-tenants"))
	ring := s.ring(t, "tenants", 2)
	require.NoError(t, s.AddWebsites(ctx, ring, "site", s.size.websites))
	stranger, insider := s.stranger(t, ring), s.insider(t, ring)
	s.complete(t, ring, 2)
	s.forge(t, ring, stranger, insider)

	changes := s.stir(t, ring)
	run := s.pressure(t, ring, s.size.rate/5)
	floods := s.flood(t, ring, stranger)
	s.lasts(t, run, between)

	began := s.Clock.Now()
	require.NoError(t, s.Scale(ctx, ring.Shards, 3))
	require.NoError(t, s.Rolled(ctx, ring.Shards, patience))
	s.lasts(t, run, between)
	result := s.noneFailed(t, run)
	s.assignedSoon(t, result)
	// one of few calls may fail on a busy machine
	s.note(t, "assigned in admission", fmt.Sprintf("%.3f %%", result.AdmittedPercent()))
	s.note(t, "changes meanwhile", changes())
	require.NoError(t, s.WhileImproving(ctx, patience, func(ctx context.Context) error { return s.Placed(ctx, ring, 3) }))
	s.note(t, "a shard more, during floods: all in place after", s.Clock.Since(began).Round(100*time.Millisecond))

	floods()
	s.recovers(t, ring, stranger)
	s.complete(t, ring, 3)
	oneAtATime(t)
}

// tenant is somebody with the ClusterRole edit in a namespace.
type tenant struct {
	client.Client
	namespace string
}

// stranger adds a namespace to the ring, and a tenant there.
func (s *suite) stranger(t *testing.T, ring cluster.Ring) tenant {
	t.Helper()
	ctx := t.Context()
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ring.Name + "-stranger"}}
	require.NoError(t, s.Client.Create(ctx, namespace))
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		assert.NoError(t, client.IgnoreNotFound(release(ctx, s.Client, namespace.Name)))
		assert.NoError(t, s.Client.Delete(ctx, namespace))
	})

	stored := &shardingv1alpha1.ClusterRing{}
	require.NoError(t, s.Client.Get(ctx, client.ObjectKey{Name: ring.Name}, stored))
	before := stored.DeepCopy()
	stored.Spec.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
		Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: []string{ring.Namespace(), namespace.Name},
	}}}
	require.NoError(t, s.Client.Patch(ctx, stored, client.MergeFrom(before)))

	c, err := s.AddTenant(ctx, namespace.Name, "stranger")
	require.NoError(t, err)

	return tenant{c, namespace.Name}
}

// insider adds a tenant to the namespace of the ring's shards.
func (s *suite) insider(t *testing.T, ring cluster.Ring) tenant {
	t.Helper()
	c, err := s.AddTenant(t.Context(), ring.Namespace(), "insider")
	require.NoError(t, err)

	return tenant{c, ring.Namespace()}
}

// forge has each tenant create Leases of shards that do not exist and of shards that do, and the insider change a real
// one. The API server must refuse all of them, because of a policy and not for lack of permission.
func (s *suite) forge(t *testing.T, ring cluster.Ring, tenants ...tenant) {
	t.Helper()
	ctx := t.Context()
	leases, err := s.Leases(ctx, ring)
	require.NoError(t, err)
	require.NotEmpty(t, leases)

	var accepted []string

	tried := 0
	try := func(what string, err error) {
		tried++

		if !refusedByPolicy(err) {
			accepted = append(accepted, fmt.Sprintf("%s: %v", what, err))
		}
	}

	for _, tenant := range tenants {
		names := []string{}
		for i := range forgeries {
			names = append(names, fmt.Sprintf("forged-%d", i))
		}

		if tenant.namespace != ring.Namespace() {
			for _, l := range leases {
				names = append(names, l.Name)
			}
		}

		for _, name := range names {
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: tenant.namespace, Name: name, Labels: map[string]string{contract.LabelClusterRing: ring.Name},
				},
				Spec: coordinationv1.LeaseSpec{
					HolderIdentity: &name, LeaseDurationSeconds: new(int32(300)), RenewTime: new(metav1.NewMicroTime(s.Clock.Now())),
				},
			}
			try("create Lease "+tenant.namespace+"/"+name, tenant.Create(ctx, lease.DeepCopy()))

			// The label may also come later.
			lease.Labels = nil

			err := tenant.Create(ctx, lease)
			if apierrors.IsAlreadyExists(err) {
				continue
			}
			require.NoError(t, err, "a Lease without a ring is allowed")
			try("label Lease "+tenant.namespace+"/"+name, tenant.Patch(ctx, lease, mergePatch(
				`{"metadata":{"labels":{%q:%q}}}`, contract.LabelClusterRing, ring.Name)))
		}

		if tenant.namespace == ring.Namespace() {
			try("take a shard's Lease", tenant.Patch(ctx, &leases[0], mergePatch(`{"spec":{"holderIdentity":"forged"}}`)))
			try("remove a shard from its ring", tenant.Patch(ctx, &leases[0],
				mergePatch(`{"metadata":{"labels":{%q:null}}}`, contract.LabelClusterRing)))
			try("freeze a shard's Lease", tenant.Patch(ctx, &leases[0],
				mergePatch(`{"metadata":{"finalizers":[%q]}}`, stuckFinalizer)))
		}
	}
	s.note(t, "forged and changed Leases", tried)
	s.demand(t, report.Figure{Name: "of these, accepted", Value: len(accepted), Limit: "none", Kept: len(accepted) == 0})
	assert.Empty(t, accepted)
}

// refusedByPolicy reports whether an admission policy has refused a request.
func refusedByPolicy(err error) bool {
	return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy") &&
		strings.Contains(err.Error(), "denied request")
}

func mergePatch(format string, args ...any) client.Patch {
	return client.RawPatch(types.MergePatchType, fmt.Appendf(nil, format, args...))
}

// flood starts floods of writes by a tenant to objects of its own namespace: shard labels, drain labels, objects that
// are created with the label of a shard that does not exist, and children of an owner that cannot be deleted. What it
// returns stops them, and demands that no shard label was changed and that nothing else was refused.
func (s *suite) flood(t *testing.T, ring cluster.Ring, by tenant) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	shards, err := s.Available(ctx, ring)
	require.NoError(t, err)

	label, drain := contract.ShardLabel(ring.Name), contract.DrainLabel(ring.Name)
	sites := by.sites(t)
	owner := by.stuck(t)

	pick := func() *v1alpha1.Website {
		site := &v1alpha1.Website{}
		site.Namespace, site.Name = by.namespace, sites[rand.IntN(len(sites))] //nolint:gosec // any

		return site
	}
	floods := []*kindOfFlood{
		{name: "changes of shard labels", write: func(n int) error {
			site, other := pick(), "nobody"
			if n%2 == 0 {
				other = shards[n/2%len(shards)]
			}

			if err := by.Get(ctx, client.ObjectKeyFromObject(site), site); err != nil {
				return err
			}

			// An object without a shard may get one, and the same one again is no change.
			if site.Labels[label] == "" || site.Labels[label] == other {
				return errSkipped
			}

			err := by.Patch(ctx, site, mergePatch(`{"metadata":{"resourceVersion":%q,"labels":{%q:%q}}}`, site.ResourceVersion,
				label, other))

			switch {
			case apierrors.IsConflict(err):
				return errSkipped // it may have no shard now
			case err == nil && site.Labels[label] == other:
				return errors.New("the label was changed")
			case refusedByPolicy(err): // no assigner has answered in time
				return nil
			}

			return err
		}},
		{name: "drain labels", write: func(int) error {
			return by.Patch(ctx, pick(), mergePatch(`{"metadata":{"labels":{%q:"true"}}}`, drain))
		}},
		{name: "objects of a shard that does not exist", write: func(n int) error {
			return by.Create(ctx, &v1alpha1.Website{
				ObjectMeta: metav1.ObjectMeta{Namespace: by.namespace, Name: fmt.Sprintf("stray-%d", n),
					Labels: map[string]string{label: "nobody"}},
				Spec: v1alpha1.WebsiteSpec{Title: "Stray"},
			})
		}},
		{name: "children of a stuck owner", write: func(n int) error {
			return by.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				Namespace: by.namespace, Name: fmt.Sprintf("child-%d", n), Labels: map[string]string{label: shards[n%len(shards)],
					drain: "true"},
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner,
					v1alpha1.SchemeGroupVersion.WithKind("Website"))},
			}})
		}},
	}

	var group sync.WaitGroup
	for _, f := range floods {
		group.Go(func() { f.run(ctx, s) })
	}

	end := func() { cancel(); group.Wait() }
	t.Cleanup(end)

	return func() {
		t.Helper()
		end()

		for _, f := range floods {
			s.note(t, "flood of "+f.name, f.wrote)
			s.demand(t, report.Figure{Name: "of these, unexpected answers", Value: len(f.unexpected), Limit: "none",
				Kept: len(f.unexpected) == 0 && f.wrote > 0})
			assert.Empty(t, f.unexpected, f.name)
		}
	}
}

// errSkipped: a flood has nothing to write at present.
var errSkipped = errors.New("nothing to write")

// kindOfFlood writes again and again. Its fields may be read when it has ended.
type kindOfFlood struct {
	name  string
	write func(n int) error

	wrote      int
	unexpected []string
}

func (f *kindOfFlood) run(ctx context.Context, s *suite) {
	ticker := s.Clock.NewTicker(flooding)
	defer ticker.Stop()

	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}

		err := f.write(n)
		if ctx.Err() != nil || errors.Is(err, errSkipped) {
			continue
		}

		f.wrote++
		if err != nil {
			f.unexpected = append(f.unexpected, fmt.Sprint(err))
		}
	}
}

// sites creates Websites of the tenant and returns their names.
func (by tenant) sites(t *testing.T) []string {
	t.Helper()

	var names []string

	for i := range drowned {
		site := &v1alpha1.Website{
			ObjectMeta: metav1.ObjectMeta{Namespace: by.namespace,
				Name: fmt.Sprintf("drowned-%d", i)}, Spec: v1alpha1.WebsiteSpec{Title: "Flooded"},
		}
		require.NoError(t, by.Create(t.Context(), site))

		names = append(names, site.Name)
	}

	return names
}

// stuck creates a Website that is being deleted and stays.
func (by tenant) stuck(t *testing.T) *v1alpha1.Website {
	t.Helper()

	owner := &v1alpha1.Website{
		ObjectMeta: metav1.ObjectMeta{Namespace: by.namespace, Name: "stuck", Finalizers: []string{stuckFinalizer}},
		Spec:       v1alpha1.WebsiteSpec{Title: "Stuck"},
	}
	require.NoError(t, by.Create(t.Context(), owner))
	require.NoError(t, by.Delete(t.Context(), owner))

	return owner
}

// release removes the finalizer of the stuck Website.
func release(ctx context.Context, c client.Client, namespace string) error {
	return c.Patch(ctx, &v1alpha1.Website{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stuck"}},
		mergePatch(`{"metadata":{"finalizers":null}}`))
}

// recovers demands that the tenant's own objects are in place after its floods: none drains, and each is at an
// available shard.
func (s *suite) recovers(t *testing.T, ring cluster.Ring, by tenant) {
	t.Helper()

	began := s.Clock.Now()
	require.NoError(t, release(t.Context(), by, by.namespace))

	own := ring
	own.Shards.Namespace = by.namespace

	require.NoError(t, s.WhileImproving(t.Context(), patience,
		func(ctx context.Context) error { return s.Placed(ctx, own, 3) }))
	s.note(t, "the tenant's objects are in place after", s.Clock.Since(began).Round(100*time.Millisecond))
}
