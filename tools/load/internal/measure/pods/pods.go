// Package pods measures how much more load a ring carries with more shards that have little CPU: Pods of the example on
// a cluster, with a limit that the kernel enforces.
//
// Unlike the processes of package scaleout, which wait, a shard here uses CPU time for a change, and its part of the
// work on the ring counts against the same limit: its Lease, its watches, its cache, and its metrics.
package pods

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/lab/continuity"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/load/internal/capacity"
	"github.com/clusterring/clusterring/tools/load/internal/objects"
	"github.com/clusterring/clusterring/tools/load/internal/points"
	"github.com/clusterring/clusterring/tools/load/internal/run"
	"github.com/clusterring/clusterring/tools/load/internal/shards"
	"github.com/clusterring/clusterring/tools/testkit/record"
)

const (
	// milli is the CPU limit of a shard, in thousandths of a core, and work the CPU time that a change needs at least.
	milli = 100
	work  = 8 * time.Millisecond
	busy  = "busy"
	// changeCPU is the flag of the shards for work.
	changeCPU = "--change-cpu="
)

// methods find out what load shards carry.
var methods = map[string]func(*fleet, context.Context) (float64, error){
	"capacity-pods-saturated": func(f *fleet, ctx context.Context) (float64, error) {
		return f.Saturate(ctx, capacity.Overload*f.most(), 10*time.Second, run.Pick(f.bench, 20*time.Second, 2*time.Minute))
	},
	"capacity-pods-ramp": func(f *fleet, ctx context.Context) (float64, error) {
		slope := run.Pick(f.bench, 0.5, capacity.Slope) //nolint:mnd // small: for 25 s

		return f.Rise(ctx, slope*float64(len(f.pods)), f.most())
	},
}

// Measurements returns what this package measures, on the cluster of a kubeconfig.
func Measurements(kubeconfig string) []run.Measurement {
	part := run.Part{Rows: slices.Sorted(maps.Keys(methods)), Run: func(ctx context.Context, b *run.Bench) error {
		return must.Attempt(func() { newFleet(b, kubeconfig).measure(ctx) })
	}}

	return []run.Measurement{{Name: "pods", Parts: []run.Part{part}}}
}

// example is the Deployment of the shards.
var example = cluster.Example.Shards()

// fleet is the ring of the example, whose shards are under load.
type fleet struct {
	*cluster.Cluster
	capacity.Load

	bench *run.Bench
	// pods are the shards; nil until they have the limit.
	pods []corev1.Pod
}

func newFleet(b *run.Bench, kubeconfig string) *fleet {
	f := &fleet{Cluster: cluster.Connect(kubeconfig), bench: b}
	f.Load = capacity.Load{
		Clock: b.Clock, Tracker: continuity.NewTracker(capacity.DoneWithin), Objects: must.Get(objects.New(f.Config)),
		Sites: objects.Batch{
			Kind: objects.Websites, Namespace: cluster.Example.Namespace(), Prefix: "load", Count: run.Pick(b, 300, 3000),
		},
		Every: run.Pick(b, 2*time.Second, 5*time.Second), Beyond: run.Pick(b, 6*time.Second, time.Minute),
		Pause: b.Pause, Metrics: f.metrics, Rng: rand.New(rand.NewPCG(1, 1)), //nolint:gosec // no secret
	}
	f.Sample = f.Counts

	return f
}

// most returns how many changes per second all shards could work on that did nothing else.
func (f *fleet) most() float64 { return float64(len(f.pods)) * milli / 1000 / work.Seconds() }

// measure measures growing numbers of shards with each of the methods.
func (f *fleet) measure(ctx context.Context) {
	f.begin(ctx)

	for _, n := range run.Pick(f.bench, []int{1, 2}, []int{1, 2, 3, 5}) {
		for round := range f.bench.Repeat() {
			for id, method := range methods {
				if !f.bench.Wants(id) {
					continue
				}

				key := points.Key{Experiment: id, Sharder: "services", X: n, Round: round}
				must.Do(f.bench.Once(key, func() (p points.Point, err error) {
					return p, must.Attempt(func() { p = f.trial(ctx, method, n) })
				}))
			}
		}
	}
}

// begin creates the Websites, while the shards have no limit, and follows the work on them. The example is as before
// when the bench is cleaned up.
func (f *fleet) begin(ctx context.Context) {
	before := f.Deployment(ctx, example)
	for _, arg := range before.Spec.Template.Spec.Containers[0].Args {
		must.Hold(!strings.HasPrefix(arg, changeCPU), "Deployment %s is as a run has left it that was killed: install it again",
			example)
	}

	following, stop := context.WithCancel(context.WithoutCancel(ctx))
	wait := must.Get(f.Follow(following, f.Config, func(err error) { f.bench.Progress("watch Websites: %s", err) }))

	f.bench.Cleanup(func(ctx context.Context) error {
		stop()
		wait()

		defer f.Objects.Close()

		return errors.Join(f.Objects.Delete(ctx, f.Sites), must.Attempt(func() {
			f.change(ctx, func(d *appsv1.Deployment) { d.Spec = before.Spec })
		}))
	})

	must.Do(f.Objects.Delete(ctx, f.Sites)) // those of a run that was killed
	must.Do(f.Objects.Create(ctx, f.Sites))
}

// change changes the shards, and waits until they are ready.
func (f *fleet) change(ctx context.Context, how func(*appsv1.Deployment)) {
	d := f.Deployment(ctx, example)
	before := d.DeepCopy()
	how(d)
	must.Do(f.Client.Patch(ctx, d, client.MergeFrom(before)))
	f.Rolled(ctx, example)
}

// enter makes the ring have n shards with the limit, and waits until it has converged.
func (f *fleet) enter(ctx context.Context, n int) {
	ring := shards.NewFleet(shards.Ring{Name: cluster.Example.Name}, nil, f.Client, f.bench.Clock)

	before := must.Get(ring.Read(ctx))
	if int(before.Status.AvailableShards) == n {
		before.Status.Assignment = nil // the same shards
	}

	f.change(ctx, func(d *appsv1.Deployment) {
		d.Spec.Replicas = new(int32(n)) //nolint:gosec // a few

		if c := &d.Spec.Template.Spec.Containers[0]; f.pods == nil {
			c.Resources.Limits[corev1.ResourceCPU] = *resource.NewMilliQuantity(milli, resource.DecimalSI)
			c.Args = append(c.Args, changeCPU+work.String(), "--controllers=website", "--kube-api-qps=1000",
				"--kube-api-burst=1000")
		}
	})
	must.Do(ring.AwaitConvergedAmong(ctx, n, shards.Fingerprint(before)))

	f.pods = f.Pods(ctx, example)
	must.Do(f.Rest(ctx))
}

// metrics returns the metrics of each shard.
func (f *fleet) metrics(ctx context.Context) (texts []string, err error) {
	for i := range f.pods {
		text, more := f.Serves(ctx, &f.pods[i])
		texts, err = append(texts, text), errors.Join(err, more)
	}

	return texts, err
}

// trial measures n shards with a method, and judges whether the result counts.
func (f *fleet) trial(ctx context.Context, method func(*fleet, context.Context) (float64, error), n int) points.Point {
	if len(f.pods) != n {
		f.enter(ctx, n)
	}

	refused := func() float64 { return must.Get(f.Refused(ctx)) }
	starts := func() float64 { return must.Get(f.Sum(ctx, "process_start_time_seconds")) }
	refusals, started, before := refused(), starts(), idle()
	f.Offered = nil
	began := record.Now()

	rate := must.Get(method(f, ctx))

	// Fullest is the largest share of the Websites, divided by the mean, and busy the part of this machine's CPUs that was
	// not idle: a cluster of one node is on it.
	spare := (idle() - before) / (record.Now() - began).Seconds() / float64(runtime.NumCPU())
	p := points.Point{Values: map[string]float64{"rate": rate, "fullest": f.fullest(ctx), busy: 1 - spare}}

	p.Invalid = capacity.Invalid(f.Offered, p.Values[busy]*float64(runtime.NumCPU()), refused()-refusals)

	if starts() > started {
		p.Invalid = append(p.Invalid, "a shard was restarted")
	}

	return p
}

// idle returns for how many seconds the CPUs of this machine have had nothing to do.
func idle() float64 {
	machine := must.Get(must.Get(procfs.NewDefaultFS()).Stat())

	return machine.CPUTotal.Idle + machine.CPUTotal.Iowait
}

// fullest returns the largest share of the Websites, divided by the mean.
func (f *fleet) fullest(ctx context.Context) float64 {
	has := map[string]int{}

	for _, site := range must.Get(f.Objects.List(ctx, objects.Selection{
		Kind: objects.Websites, Namespace: f.Sites.Namespace,
	})) {
		if strings.HasPrefix(site.Name, f.Sites.Prefix+"-") {
			has[site.Labels[contract.ShardLabel(cluster.Example.Name)]]++
		}
	}

	return float64(slices.Max(slices.Collect(maps.Values(has)))*len(f.pods)) / float64(f.Sites.Count)
}
