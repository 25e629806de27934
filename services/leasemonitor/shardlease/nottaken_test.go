package shardlease_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

// try reconciles the shard's Lease once, which may fail.
func (m *monitor) try(since time.Duration) error {
	m.t.Helper()
	m.pass(since)

	_, err := m.Reconcile(m.t.Context(), reconcile.Request{NamespacedName: m.id()})

	return err
}

// told returns what people are told of the shard's ring.
func (m *monitor) told() []string { return m.NotTaken.Of(m.shard.Ring) }

// refuse has the API server refuse requests of these verbs.
func (m *monitor) refuse(verbs ...string) {
	m.meddle = func(r request) error {
		if slices.Contains(verbs, r.verb) {
			return errRefused
		}

		return r.send()
	}
}

// silent is when the Lease of a shard that never renews it is due to be taken over.
const silent = 2*d + time.Second

// refused makes a monitor with a silent shard and an API server that refuses requests. It returns the rings that people
// were told to look at.
func refused(t *testing.T, verbs ...string) (m *monitor, calls *[]string) {
	t.Helper()

	m, calls = newMonitor(t), &[]string{}
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()
	m.refuse(verbs...)
	m.NotTaken.Notify(func(ring string) { *calls = append(*calls, ring) })

	return m, calls
}

var errRefused = apierrors.NewForbidden(schema.GroupResource{Resource: "leases"}, "shard-0",
	errors.New("a policy says no"))

// Whatever keeps a Lease from being taken over is told, after a moment, and until it is over.
func TestLeaseThatCannotBeTakenIsTold(t *testing.T) {
	for verb, what := range map[string]string{
		"update": "take over Lease", "patch": "label Lease", "live get": "read Lease",
	} {
		t.Run(verb, func(t *testing.T) {
			m, calls := refused(t, verb)

			require.ErrorIs(t, m.try(silent), errRefused)
			require.Empty(t, m.told(), "it may pass by itself")
			require.ErrorIs(t, m.try(silent+time.Second), errRefused)
			require.Len(t, m.told(), 1)
			require.Contains(t, m.told()[0], "shard "+m.id().String()+" has not renewed its Lease since 2026-01-02T03:04:05Z "+
				"and its objects wait, "+
				"because the Lease cannot be taken over: "+what)
			require.Contains(t, m.told()[0], "a policy says no")

			first := m.told()
			require.ErrorIs(t, m.try(silent+time.Minute), errRefused)
			require.Equal(t, first, m.told())

			before := len(*calls)

			m.refuse()
			m.look()
			require.Equal(t, contract.LeaseControllerIdentity, *m.lease().Spec.HolderIdentity)
			require.Empty(t, m.told())
			require.Len(t, *calls, before+1)
			m.look()
			require.Equal(t, slices.Repeat([]string{m.shard.Ring}, before+1), *calls, "nothing new is nothing to look at")
		})
	}
}

// What is refused of a shard that lives, or that has released its Lease, keeps no objects waiting.
func TestOnlyDueTakeOversAreTold(t *testing.T) {
	m, _ := refused(t, "patch", "update")

	require.NoError(t, m.try(d-1))
	require.ErrorIs(t, m.try(d+time.Second), errRefused, "the label expired")
	require.ErrorIs(t, m.try(2*d), errRefused)
	require.Empty(t, m.told())
	require.NoError(t, m.shard.Release(t.Context()))
	require.ErrorIs(t, m.try(3*d), errRefused, "the label dead")
	require.ErrorIs(t, m.try(30*d), errRefused, "the label orphaned")
	require.Empty(t, m.told())
}

// joins puts the Lease into another ring.
func (m *monitor) joins(ring string) error {
	l := m.lease()
	l.Labels[contract.LabelClusterRing] = ring

	if ring != "" {
		m.exists(ring)
	}

	return m.admin.Update(m.t.Context(), l)
}

func TestNothingIsToldOfLeaseThatIsRenewedOrGone(t *testing.T) {
	for name, end := range map[string]func(*monitor) error{
		"renewed": func(m *monitor) error {
			m.shard.Clock = m.clock
			return m.shard.Renew(m.t.Context())
		},
		"deleted":         func(m *monitor) error { return m.admin.Delete(m.t.Context(), m.lease()) },
		"of no ring":      func(m *monitor) error { return m.joins("") },
		"of another ring": func(m *monitor) error { return m.joins("another-" + m.shard.Namespace) },
	} {
		t.Run(name, func(t *testing.T) {
			m, calls := refused(t, "patch", "update")
			require.ErrorIs(t, m.try(silent), errRefused)
			require.ErrorIs(t, m.try(silent+time.Second), errRefused)
			require.Len(t, m.told(), 1)

			before := len(*calls)

			require.NoError(t, end(m))
			_ = m.try(silent + 2*time.Second) // a label may still be refused
			require.Empty(t, m.told())

			another := m.NotTaken.Of("another-" + m.shard.Namespace)
			require.Len(t, *calls, before+1+len(another))
			require.Len(t, another, map[string]int{"of another ring": 1}[name],
				"each ring tells of its own, at once if it was late before")
		})
	}
}

// sweep deletes the Leases in the shard's namespace that are due.
func (m *monitor) sweep() {
	m.t.Helper()

	strays := &shardlease.Strays{Client: m.Client, Clock: m.clock, Ages: m.Ages}
	require.NoError(m.t, strays.Sweep(m.t.Context()))
}

// A Lease whose ring does not exist is written only when it is deleted, as late as if the ring existed.
func TestLeaseOfARingThatDoesNotExistIsOnlyDeleted(t *testing.T) {
	for name, tc := range map[string]struct {
		release bool
		due     time.Duration
		writes  int
	}{
		"held":     {false, 4*d + time.Minute, 2}, // nobody may delete a Lease that is held, so it is taken first
		"released": {true, time.Second + time.Minute, 1},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.shard.Ring = "made-up-" + m.shard.Namespace
			require.NoError(t, m.shard.Acquire(t.Context()))

			if tc.release {
				require.NoError(t, m.shard.Release(t.Context()))
			}

			before, writes := m.lease(), 0
			m.meddle = func(r request) error {
				if slices.Contains([]string{"patch", "update", "delete"}, r.verb) {
					writes++
				}

				return r.send()
			}

			for _, at := range []time.Duration{0, d, silent, tc.due - time.Second} {
				require.Zero(t, m.lookAt(at))
				m.sweep()
			}
			require.Zero(t, writes)
			require.Equal(t, before, m.lease())

			m.pass(tc.due)
			m.sweep()
			require.Equal(t, tc.writes, writes)
			require.Nil(t, m.lease())
			require.Empty(t, m.events.Events)
		})
	}
}

func TestStrayThatChangesBeforeItsDeletionStays(t *testing.T) {
	for name, happens := range map[string]change{
		"it is renewed":         {"list", true, renew},
		"its ring is created":   {"list", true, func(m *monitor) { m.exists(m.shard.Ring) }},
		"it is renewed at last": {"delete", false, renew},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMonitor(t)
			m.shard.Ring = "made-up-" + m.shard.Namespace
			require.NoError(t, m.shard.Acquire(t.Context()))
			m.sweep()
			m.pass(time.Hour)

			m.at(happens.verb, happens.after, func() { happens.do(m) })
			m.sweep()
			require.NotNil(t, m.lease())
		})
	}
}

// Those who come from the prior art have dashboards with its metrics.
func TestMetricsOfThePriorArtAreExported(t *testing.T) {
	m := newMonitor(t)
	ring := m.shard.Ring
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	of := m.ring()
	of.Status.Shards, of.Status.AvailableShards, of.Status.ObservedGeneration = 3, 2, 1
	require.NoError(t, m.admin.Status().Update(t.Context(), of))

	census := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages, EachShard: true}
	ofThisRing := `{clusterring="` + ring + `",uid="` + string(of.UID) + `"} `
	ofThisShard := `clusterring="` + ring + `",namespace="` + m.shard.Namespace + `",shard="` + m.shard.Name + `",`
	require.NoError(t, testutil.CollectAndCompare(ofRing{census, ring}, strings.NewReader(`
# HELP controller_sharding_clusterring_metadata_generation The generation of a ClusterRing.
# TYPE controller_sharding_clusterring_metadata_generation gauge
controller_sharding_clusterring_metadata_generation`+ofThisRing+`1
# HELP controller_sharding_clusterring_observed_generation The generation of a ClusterRing that the services have last observed.
# TYPE controller_sharding_clusterring_observed_generation gauge
controller_sharding_clusterring_observed_generation`+ofThisRing+`1
# HELP controller_sharding_clusterring_status_available_shards The number of shards of a ClusterRing that objects are assigned to.
# TYPE controller_sharding_clusterring_status_available_shards gauge
controller_sharding_clusterring_status_available_shards`+ofThisRing+`2
# HELP controller_sharding_clusterring_status_shards The number of shards of a ClusterRing.
# TYPE controller_sharding_clusterring_status_shards gauge
controller_sharding_clusterring_status_shards`+ofThisRing+`3
# HELP controller_sharding_shard_info Information about a shard: the uid of its Lease. The value is 1.
# TYPE controller_sharding_shard_info gauge
controller_sharding_shard_info{`+ofThisShard+`uid="`+string(m.lease().UID)+`"} 1
# HELP controller_sharding_shard_state The state of a shard: 1 for the present state, 0 for the others.
# TYPE controller_sharding_shard_state gauge
controller_sharding_shard_state{`+ofThisShard+`state="dead"} 0
controller_sharding_shard_state{`+ofThisShard+`state="expired"} 0
controller_sharding_shard_state{`+ofThisShard+`state="orphaned"} 0
controller_sharding_shard_state{`+ofThisShard+`state="ready"} 1
controller_sharding_shard_state{`+ofThisShard+`state="uncertain"} 0
# HELP clusterring_shards Leases of shards, by ring and state. The ring is "unknown" if no ring has that name. Reported by the replica that leads.
# TYPE clusterring_shards gauge
clusterring_shards{ring="`+ring+`",state="ready"} 1
`)))

	// By default, a new Lease adds no series.
	byDefault := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages}
	require.Zero(t, testutil.CollectAndCount(ofRing{byDefault, ring}, "controller_sharding_shard_info",
		"controller_sharding_shard_state"))

	// A Lease that does not count is no shard.
	patch := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"shardNamespaces":["elsewhere"]}}`))
	require.NoError(t, m.admin.Patch(t.Context(), of, patch))
	require.Zero(t, testutil.CollectAndCount(ofRing{census, ring}, "controller_sharding_shard_info",
		"controller_sharding_shard_state"))
}

// ofRing leaves out the metrics of other tests' rings.
type ofRing struct {
	prometheus.Collector

	ring string
}

func (o ofRing) Collect(out chan<- prometheus.Metric) {
	all := make(chan prometheus.Metric, 1000)
	o.Collector.Collect(all)
	close(all)

	for metric := range all {
		var written dto.Metric
		if metric.Write(&written) != nil {
			continue
		}

		for _, label := range written.GetLabel() {
			if (label.GetName() == "ring" || label.GetName() == "clusterring") && label.GetValue() == o.ring {
				out <- metric
			}
		}
	}
}

// Everyone who creates Leases of rings that do not exist adds no series.
func TestRingsThatAreMadeUpAreOneInMetrics(t *testing.T) {
	m := newMonitor(t)
	m.shard.Ring = "made-up-" + m.shard.Namespace
	require.NoError(t, m.shard.Acquire(t.Context()))
	m.look()

	census := &shardlease.Census{Leases: m.Client, Clock: m.clock, Ages: m.Ages}
	require.NotZero(t, testutil.CollectAndCount(ofRing{census, "unknown"}))
	require.Zero(t, testutil.CollectAndCount(ofRing{census, m.shard.Ring}))

	m.pass(time.Hour)
	m.sweep()

	for _, counter := range shardlease.Collectors() {
		require.Zero(t, testutil.CollectAndCount(ofRing{counter, m.shard.Ring}))
	}

	require.GreaterOrEqual(t, testutil.ToFloat64(ofRing{shardlease.Collectors()[1], "unknown"}), 1.0)
}
