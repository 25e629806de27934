package scenario

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/report"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

// Modes returns other ways to share the objects of a controller, of those that docs/modes.md lists: the named ones, or
// all without names. The steps do not depend on each other.
func (s *Story) Modes(names ...string) []Step {
	modes := []Step{
		{name: "standby", Title: "one shard is active, two stand by", do: s.standby},
		{name: "keys", Title: "objects of a namespace belong together", do: s.keys},
		{name: "jobset", Title: "JobSet, whose code knows nothing of shards", do: s.jobset},
		{name: "trust-manager", Title: "trust-manager, whose reconciler is hidden", do: s.trustManager},
		{name: "client-go", Title: "a controller without controller-runtime", do: s.clientGo},
	}

	return slices.DeleteFunc(modes, func(mode Step) bool { return len(names) > 0 && !slices.Contains(names, mode.name) })
}

// ModeNames returns the names of the modes.
func ModeNames() []string {
	var names []string
	for _, mode := range (&Story{}).Modes() {
		names = append(names, mode.name)
	}

	return names
}

// remake deletes the ring and creates it again, with a change.
func (s *Story) remake(ctx context.Context, change func(*v1alpha1.ClusterRingSpec)) {
	ring := &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: localsystem.Ring}, Spec: s.ring.Stored(ctx).Spec,
	}
	change(&ring.Spec)
	s.deleteRing(ctx)
	must.Do(s.client.Create(ctx, ring))
}

// websites creates the Websites of a mode and waits until each is at an available shard, with its ConfigMap.
func (s *Story) websites(ctx context.Context) {
	s.createNamespaces(ctx)
	s.createWebsites(ctx, s.sites)
	s.awaitInPlace(ctx)
	s.awaitReady(ctx)
}

// tidy deletes the objects of a mode, stops its shards, and checks what they have recorded.
func (s *Story) tidy(ctx context.Context) {
	// The garbage collector looks for new kinds of owners only every 30 s.
	for n := range namespaces {
		in := client.InNamespace(namespaceOf(n))
		must.Do(errors.Join(s.client.DeleteAllOf(ctx, &examplev1alpha1.Website{}, in),
			s.client.DeleteAllOf(ctx, &corev1.ConfigMap{}, in, client.HasLabels{contract.ShardLabel(localsystem.Ring)})))
	}

	s.until(ctx, func(context.Context) {
		left := s.objects()
		must.Hold(len(left) == 0, "%d objects are still there", len(left))
	})

	s.created = 0

	var names []string

	for _, shard := range s.running() {
		shard.lost = stopped
		names = append(names, shard.Name)
	}

	must.Do(s.system.End(names...))
	s.verify()
}

// standby runs three shards of which one is active, and kills that one.
func (s *Story) standby(ctx context.Context) {
	s.remake(ctx, func(spec *v1alpha1.ClusterRingSpec) { spec.ActiveShards = ptr.To[int32](1) })
	names := s.start(ctx, shardsFirst)
	s.websites(ctx)

	active := s.onlyAt()
	s.ok("with activeShards: 1, %s has all %d Websites; %d shards stand by", active, s.sites, len(names)-1)

	since := record.Now()
	s.start(ctx, 1)
	s.awaitReady(ctx)

	cost := continuity.Of(s.versions(), since, record.Now())
	must.Hold(cost.Labels == 0, "labels of objects have changed: %v", cost)
	s.ok("another shard joins: nothing moves")

	shard := s.serving(active)
	shard.lost = killed
	must.Do(shard.Kill())
	s.awaitInPlace(ctx)
	s.awaitReady(ctx)
	s.ok("%s was killed: %s has all Websites after %s (its Lease lasts %s)", active, s.onlyAt(), seconds(shard.EndedAt()),
		report.Seconds(localsystem.LeaseDuration))
	s.tidy(ctx)
}

// onlyAt returns the shard that has all Websites.
func (s *Story) onlyAt() string {
	shards := slices.Collect(maps.Keys(s.objects().websites().count()))
	must.Hold(len(shards) == 1 && shards[0] != "", "not one shard has all Websites, but: %v", shards)

	return shards[0]
}

// keys keeps the objects of a namespace together while a shard joins.
func (s *Story) keys(ctx context.Context) {
	s.remake(ctx, func(spec *v1alpha1.ClusterRingSpec) {
		spec.ActiveShards = nil

		for i := range spec.Resources {
			spec.Resources[i].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyNamespace}
		}
	})
	s.start(ctx, shardsFirst)
	s.websites(ctx)
	s.together("")
	s.start(ctx, 1)
	s.awaitReady(ctx)
	s.awaitInPlace(ctx)
	s.together("after another shard has joined, ")
	s.tidy(ctx)
}

// together checks that the objects of each namespace are at one shard.
func (s *Story) together(when string) {
	at := map[string]string{}

	var apart []string

	for _, v := range s.objects().websites() {
		if shard, known := at[v.Namespace]; known && shard != v.Shard {
			apart = append(apart, fmt.Sprintf("namespace %s has objects at %s and at %s", v.Namespace, shard, v.Shard))
		}

		at[v.Namespace] = v.Shard
	}

	must.None("objects of one namespace are apart", apart)
	s.ok("%sthe %d Websites of %d namespaces are at %d shards, those of each namespace at one",
		when, s.created, namespaces, len(slices.Compact(slices.Sorted(maps.Values(at)))))
}

const (
	// own is the namespace of the objects of the ring whose shards elect its sharder, and ownSites the number of its
	// Websites.
	own, ownSites = "embedded", 40
	// electedSays is in the log of the shard that is elected first.
	electedSays = "Took the ring"
)

// embedded lets shards shard a ring by themselves, which the services leave alone, and stops the one that they have
// elected.
func (s *Story) embedded(ctx context.Context) {
	s.prepareEmbedded(ctx)
	names := s.start(ctx, 2, "--embedded")
	s.createOwn(ctx)

	elected, told := s.elected(names), time.Now()
	has := s.objects().websites().at(elected.Name)

	// Its objects and its office both pass to others.
	elected.lost = stopped
	s.end(elected.Name)
	s.createOwnSite(ctx, ownSites)
	s.awaitOwn(ctx, ownSites+1)
	s.ok("it stopped: its %d objects moved, and another elected shard assigned a new object, after %s in all", has,
		seconds(told))
}

// prepareEmbedded grants the shards what the elected one needs, and creates the ring again, for one namespace.
func (s *Story) prepareEmbedded(ctx context.Context) {
	must.Do(s.system.Plane.Install(ctx, "deploy/example-embedded/rbac.yaml"))
	must.Do(s.client.Create(ctx, &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: localsystem.Ring},
		Spec: v1alpha1.ClusterRingSpec{
			Sharder: v1alpha1.SharderEmbedded, ShardNamespaces: []string{system.ShardNamespace},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: own}},
			Resources: []v1alpha1.RingResource{{
				Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites",
				ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
			}},
		},
	}))
	must.Do(s.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: own}}))
}

// createOwn creates the Websites, one after the other, once the ring has a sharder.
func (s *Story) createOwn(ctx context.Context) {
	s.until(ctx, func(ctx context.Context) {
		assigned := meta.IsStatusConditionTrue(s.ring.Stored(ctx).Status.Conditions, v1alpha1.ConditionAssigned)
		must.Hold(assigned, "the shards have not elected a sharder")
	})

	created := len(s.versions())

	for i := range ownSites {
		s.createOwnSite(ctx, i)
	}

	s.awaitOwn(ctx, ownSites)

	waits := s.waits(created)
	must.Hold(len(waits) == ownSites, "%d of %d objects were created without a shard: some webhook is in use", len(waits),
		ownSites)

	c := meta.FindStatusCondition(s.ring.Stored(ctx).Status.Conditions, v1alpha1.ConditionWebhookRegistered)
	must.Hold(c != nil && c.Reason == v1alpha1.ReasonEmbedded, "the ring does not say that it uses no webhook: %v", c)
	s.ok("no webhook, no service: the elected shard assigned %d new objects, half of them within %s", ownSites,
		report.Seconds(waits[len(waits)/2]))
}

// elected returns the one of the shards that reports that it shards the ring.
func (s *Story) elected(names []string) *shard {
	for _, name := range names {
		shard := s.serving(name)
		found, err := process.Find(shard.LogFile, 1, electedSays)
		must.Do(err)

		if len(found) > 0 {
			return shard
		}
	}

	must.Do(errors.New("no shard reports that it was elected"))

	return nil
}

// createOwnSite creates a Website of the ring.
func (s *Story) createOwnSite(ctx context.Context, i int) {
	site := newWebsite(i)
	site.Namespace = own
	s.created++
	system.Asked(s.client.Create(ctx, site))
}

// awaitOwn waits until the ring's n Websites are each at an available shard, with its ConfigMap.
func (s *Story) awaitOwn(ctx context.Context, n int) {
	s.awaitPlaced(ctx, n, func(v check.Version) bool { return v.Namespace == own })
}
