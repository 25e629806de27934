package shard

import (
	"context"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// series returns the metrics of the shards of a ring, as a manager serves them, without the ring: name{labels} and
// values.
func series(t *testing.T, ring string) map[string]float64 {
	t.Helper()

	families, err := metrics.Registry.Gather()
	require.NoError(t, err)

	all := map[string]float64{}

	for _, family := range families {
		name, is := strings.CutPrefix(family.GetName(), "clusterring_shard_")
		if !is {
			continue
		}

		for _, m := range family.GetMetric() {
			labels, of := []string{}, ""

			for _, l := range m.GetLabel() {
				if l.GetName() == "ring" {
					of = l.GetValue()
				} else {
					labels = append(labels, l.GetName()+"="+l.GetValue())
				}
			}

			if of == ring {
				// one of them is set
				all[name+"{"+strings.Join(labels, ",")+"}"] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}

	return all
}

// The document lists what the registry has, with its labels.
func TestMetricsAreDocumented(t *testing.T) {
	descs := make(chan *prometheus.Desc, 100)

	for _, c := range []prometheus.Collector{waitingObjects, waitedSeconds, running} {
		require.ErrorAs(t, metrics.Registry.Register(c), &prometheus.AlreadyRegisteredError{})
		c.Describe(descs)
	}
	close(descs)

	registered := map[string]string{}

	for d := range descs {
		found := regexp.MustCompile(`fqName: "(\w+)".*variableLabels: \{([\w,]*)\}`).FindStringSubmatch(d.String())
		require.Len(t, found, 3, d)
		registered[found[1]] = found[2]
	}

	page, err := os.ReadFile("../../docs/operations.md")
	require.NoError(t, err)

	documented := map[string]string{}
	_, section, _ := strings.Cut(string(page), "\n## Metrics of a shard\n")
	section, _, _ = strings.Cut(section, "\n## ")

	for _, row := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*) \\|").FindAllStringSubmatch(section, -1) {
		documented[row[1]] = strings.NewReplacer("`", "", " ", "").Replace(row[2])
	}

	require.Equal(t, registered, documented)
}

// What a shard exports is its state when it is read.
func TestMetricsShowTheStateOfAShard(t *testing.T) {
	s, _, clk := unplugged(t)
	s.options.Ring, s.guard.clock = "shown", clk
	remove := running.add(s)

	secrets := cache.NewStore(cache.MetaNamespaceKeyFunc)

	for _, name := range []string{"a", "b"} {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name}}
		require.NoError(t, secrets.Add(o))
	}

	k := &kind{gvk: corev1.SchemeGroupVersion.WithKind("Secret")}
	s.stores.add(&store{Store: secrets, form: form{gvk: k.gvk}}, corev1.Resource("secrets"))

	w, key := &wrapped{kind: k}, k.key(types.NamespacedName{Namespace: "n", Name: "a"})

	s.poison.held[key] = ""

	// A worker of the controller enters the object, and does not return; another one comes and goes.
	stuck := &visit{shard: s, controller: w.controllerOf(mark{controller: "websites"}), began: clk.Now()}
	s.progress.begins(stuck)
	stuck.into(key)
	s.guard.judge(key, view{version: "1", owned: true, draining: true})
	clk.Step(30 * time.Second)

	other := &visit{shard: s, controller: w.controllerOf(mark{}), began: clk.Now()}
	s.progress.begins(other)
	other.into(key)
	other.refused(s.guard.judge(key, view{version: "1", owned: true, draining: true}), nil)
	other.refused(run, ErrLost)
	other.refused(run, waitError{ErrNotHeld, time.Second})
	other.refused(unclear, waitError{errBehind, time.Second})
	other.refused(unclear, nil)
	other.refused(foreign, nil)
	other.refused(run, context.Canceled)
	other.refused(run, nil)
	s.guard.leave(key)
	s.progress.ends(other)
	s.progress.refused(s.progress.writes, "patch", reasonOf(run, false, ErrNotHeld))
	clk.Step(10 * time.Second)

	const of = "shard=shard-0}"

	require.Equal(t, map[string]float64{
		"info{pod=shard-0," + "shard=shard-0,slot=}": 1, "standby{" + of: 0, "lease_held{" + of: 1,
		"objects{kind=Secret," + of: 2, "drains_seen_total{" + of: 1, "drains_released_total{" + of: 0,
		"drains_waiting{" + of:                           1,
		"held_back_objects{kind=Secret," + of:            1,
		"oldest_drain_seconds{controller=websites," + of: 40,
		"stalled_seconds{controller=secret," + of:        0, "stalled_seconds{controller=websites," + of: 40,
		"refused_reconciles_total{controller=secret,reason=draining," + of: 1,
		"refused_reconciles_total{controller=secret,reason=lost," + of:     1,
		"refused_reconciles_total{controller=secret,reason=not_held," + of: 1,
		"refused_reconciles_total{controller=secret,reason=behind," + of:   1,
		"refused_reconciles_total{controller=secret,reason=unclear," + of:  1,
		"refused_reconciles_total{controller=secret,reason=moved," + of:    1,
		"refused_reconciles_total{controller=secret,reason=error," + of:    1,
		"refused_writes_total{reason=not_held,shard=shard-0,verb=patch}":   1,
	}, series(t, "shown"))

	// It is released when the last worker leaves.
	_, acknowledge := s.guard.leave(key)
	require.True(t, acknowledge)
	s.guard.settle(key, outcome{version: "2"})
	s.progress.ends(stuck)

	now := series(t, "shown")
	require.Zero(t, now["drains_waiting{"+of])
	require.NotContains(t, strings.Join(slices.Collect(maps.Keys(now)), " "), "oldest_drain")
	require.Zero(t, now["stalled_seconds{controller=websites,"+of])
	require.InDelta(t, 1, now["drains_seen_total{"+of], 0)

	remove()
	require.Empty(t, series(t, "shown"))
}

// The metrics of a shard that runs, through a drain that waits for a worker.
func TestMetricsOfAShardThatRuns(t *testing.T) {
	f := newFixture(t)
	s := f.shard("shard-0")
	b := newBlocker()
	cm := f.configMap(s, "a")
	require.Empty(t, series(t, f.ring)["info{pod=shard-0,shard=shard-0,slot=}"], "it does not run yet")

	p := f.start(s, func(mgr ctrl.Manager) { f.controls(mgr, s, &corev1.ConfigMap{}, b.reconcile) })
	receive(f, b.entered, "the worker starts")

	const of = "shard=shard-0}"

	now := series(t, f.ring)
	require.InDelta(t, 1, now["lease_held{"+of], 0)
	require.Less(t, now["lease_renewal_age_seconds{"+of], s.options.RenewDeadline.Seconds())
	require.InDelta(t, 1, now["objects{kind=ConfigMap,"+of], 0)

	f.label(cm, s.drainKey, "true")
	f.eventually("the drain waits for the controller",
		func() bool { return series(t, f.ring)["oldest_drain_seconds{controller=test,"+of] > 0 })
	close(b.proceed)
	f.released(cm)
	f.eventually("it is released", func() bool { return series(t, f.ring)["drains_released_total{"+of] == 1 })

	require.NoError(t, p.stop())
	require.NotContains(t, series(t, f.ring), "lease_held{"+of)
}

// A process may be a shard of several rings, and a test may run several shards of a name.
func TestMetricsOfSeveralShardsInAProcess(t *testing.T) {
	var shards []*Shard

	for _, o := range []Options{
		{Ring: "several-a", Name: "one"}, {Ring: "several-b", Name: "one"}, {Ring: "several-a", Name: "one"},
		{Ring: "several-a", Slots: Count(2), Pod: "pod-1"}, {Ring: "several-b", Slots: Count(2), Pod: "pod-1"},
	} {
		o.Namespace = "default"
		s, err := New(o)
		require.NoError(t, err)
		t.Cleanup(running.add(s))
		shards = append(shards, s)
	}

	shards[2].term.unlimited()

	a, b := series(t, "several-a"), series(t, "several-b")
	require.InDelta(t, 1, a["lease_held{shard=one}"], 0, "the last one of a name is exported")
	require.Zero(t, b["lease_held{shard=one}"])
	require.InDelta(t, 1, a["standby{shard=}"], 0)
	require.InDelta(t, 1, b["info{pod=pod-1,shard=,slot=}"], 0)

	shards[3].become("several-a-0")
	require.InDelta(t, 1, series(t, "several-a")["info{pod=pod-1,shard=several-a-0,slot=several-a-0}"], 0)
}
