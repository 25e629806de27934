// Package rebalancer keeps every object at the shard it belongs to.
//
// It reads Leases, ClusterRings, namespaces and the metadata of sharded objects; it decides which objects are without a
// shard, at a shard that is gone or at another one than the ring gives them to; it writes their shard and drain labels, and
// for each ring the condition Assigned. One replica works, the others stand by.
package rebalancer

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/internal/membership"
	"github.com/clusterring/clusterring/services/internal/resources"
	"github.com/clusterring/clusterring/services/internal/status"
	"github.com/clusterring/clusterring/services/rebalancer/engine"
	"github.com/clusterring/clusterring/services/rebalancer/objects"
)

// name is the service's name.
const name = "rebalancer"

// ringsAtOnce bounds the rings whose status is written at a time; one that is slow holds up few others.
const ringsAtOnce = 4

// NewCommand returns the command of the rebalancer.
func NewCommand() *cobra.Command {
	limits := engine.Limits{
		Workers: 16, Total: 500, PerShard: 100, DrainTimeout: time.Minute, Settle: 5 * time.Second, AuditBudget: 0.01,
	}
	bounds := objects.Bounds{PerSecond: 2000, AtOnce: 64}

	return kit.NewCommand(kit.Service{
		Name:  name,
		Short: "Is every object where it belongs?",
		Long: `The rebalancer keeps every object of every ClusterRing at the shard that the ring gives it to.

It labels objects that admission has missed and objects of shards that are gone, at once and by itself. When shards join, it
asks the present shards to give up what belongs to the new ones, by the drain label, and waits for their acknowledgement: an
object of a shard that is alive is never taken from it. Objects that are controlled by others follow their owners.

Objects that are in place cost next to nothing: it watches only those without an available shard and those that are being
drained, and goes over all labelled objects after the shards or the ring have changed, and otherwise once in a while
(--audit-budget). Whatever it finds out of place it keeps until it has seen it in its place.

On every ring it maintains the condition Assigned and status.assignment. It needs rights on each ring's resources (get, list,
watch, patch), granted by a ClusterRole with the label ` + v1alpha1.LabelAggregateToRebalancer + `: "true".`,
		Example: `  # In a cluster, with the Pod's service account
  rebalancer

  # On a workstation, next to other services, with readable logs
  rebalancer --kubeconfig ~/.kube/config --leader-elect=false --log-format text \
    --metrics-bind-address 127.0.0.1:8083 --health-probe-bind-address 127.0.0.1:8084`,
		LeaderElection: true,
		AddFlags:       func(flags *pflag.FlagSet) { addFlags(flags, &limits, &bounds) },
		Validate:       func() error { return validate(limits, bounds) },
		Setup:          func(ctx context.Context, rt *kit.Runtime) error { return setup(ctx, rt, limits, bounds) },
	})
}

func addFlags(flags *pflag.FlagSet, l *engine.Limits, b *objects.Bounds) {
	flags.IntVar(&l.Workers, "concurrent-writes", l.Workers, "Number of objects of a ring that are moved at a time")
	flags.IntVar(&b.AtOnce, "concurrent-requests", b.AtOnce, "Number of reads and writes of single objects at a time, of all rings; rings get equal shares")
	flags.IntVar(&b.PerSecond, "objects-qps", b.PerSecond, "Sustained requests per second for the objects of all rings; --kube-api-qps is for everything else")
	flags.IntVar(&l.Total, "max-drains", l.Total, "Number of objects of a ring that may be drained at a time")
	flags.IntVar(&l.PerShard, "max-drains-per-shard", l.PerShard, "Number of objects of one shard that may be drained at a time")
	flags.DurationVar(&l.DrainTimeout, "drain-timeout", l.DrainTimeout,
		"Time that a shard may take to acknowledge a drain until it is reported as late; nothing is ever forced")
	flags.DurationVar(&l.Settle, "settle-period", l.Settle,
		"Time after a change of a ring until the pass over its objects may begin that shows all of them in their place")
	flags.Float64Var(&l.AuditBudget, "audit-budget", l.AuditBudget,
		"Part of a core, of API server and rebalancer together, that may go into looking at all objects of a ring although nothing has changed; an audit comes every minute at most")
}

func validate(l engine.Limits, b objects.Bounds) error {
	const most = 10_000

	for _, f := range []struct {
		flag  string
		value int
	}{{"concurrent-writes", l.Workers}, {"max-drains", l.Total}, {"max-drains-per-shard", l.PerShard}, {"concurrent-requests", b.AtOnce}, {"objects-qps", b.PerSecond}} {
		if f.value < 1 || f.value > most {
			return fmt.Errorf("--%s must be between 1 and %d, not %d", f.flag, most, f.value)
		}
	}

	if l.DrainTimeout < time.Second {
		return fmt.Errorf("--drain-timeout must be at least 1s, not %s", l.DrainTimeout)
	}

	if l.Settle < 0 {
		return fmt.Errorf("--settle-period must not be negative, but is %s", l.Settle)
	}

	if !(l.AuditBudget > 0 && l.AuditBudget <= 1) { // nor NaN
		return fmt.Errorf("--audit-budget must be greater than 0 and at most 1, not %v", l.AuditBudget)
	}

	return nil
}

func setup(ctx context.Context, rt *kit.Runtime, limits engine.Limits, bounds objects.Bounds) error {
	mgr := rt.Manager
	index := membership.NewIndex()

	if err := kit.FollowLeases(rt, index); err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	api, err := objects.Connect(mgr.GetConfig(), mgr.GetHTTPClient(), bounds)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	known, err := resources.Follow(mgr, rt.Clock, rt.Log)
	if err != nil {
		return fmt.Errorf("set up the rebalancer: %w", err)
	}

	var queue notifier

	recorder := mgr.GetEventRecorder(name)
	f := &fleet{
		api: api, live: mgr.GetAPIReader(),
		namespaces: namespaces{cached: mgr.GetClient(), live: mgr.GetAPIReader()},
		limits:     limits, clock: rt.Clock, log: rt.Log,
		ask:     known.Ask,
		changed: queue.notify,
		late: func(ring string, id objects.ID, shard string, after time.Duration) {
			obj := &v1alpha1.ClusterRing{}
			if err := mgr.GetClient().Get(ctx, types.NamespacedName{Name: ring}, obj); err == nil {
				recorder.Eventf(obj, nil, "Warning", v1alpha1.ReasonDrainsLate, "Drain",
					"shard %s has not given up %s in %s", shard, id, after)
			}
		},
	}

	if err := mgr.Add(f); err != nil {
		return fmt.Errorf("set up the engines: %w", err)
	}

	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), resources: known, index: index, fleet: f,
		recorder: recorder, log: rt.Log,
		status: status.Writer{Client: mgr.GetClient(), Owner: name, Clock: rt.Clock},
		counts: rate.NewLimiter(countsPerSecond, countsPerSecond),
	}

	err = builder.ControllerManagedBy(mgr).Named(name).
		For(&v1alpha1.ClusterRing{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: ringsAtOnce, RateLimiter: kit.RateLimiter[reconcile.Request]()}).
		Watches(&corev1.Namespace{}, relabelled(f)).
		WatchesRawSource(source.Func(func(ctx context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
			queue.set(q)
			index.Subscribe(queue.notify)
			known.Subscribe(func() { queue.all(ctx, mgr.GetClient(), rt.Log) })

			if err := rt.AwaitLeases(ctx); err != nil {
				return fmt.Errorf("wait for Leases: %w", err)
			}

			_ = known.Await(ctx) // while it fails, the rings' conditions say so

			return ctx.Err()
		})).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of rings: %w", err)
	}

	return nil
}

// relabelled makes the rings look again that select a namespace by labels which have changed, and those that watch the namespaces they
// cover one by one, when there is one more or less.
func relabelled(f *fleet) handler.EventHandler {
	add := func(q workqueue.TypedRateLimitingInterface[reconcile.Request], rings []string) {
		for _, ring := range rings {
			q.Add(requestFor(ring))
		}
	}

	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(q, f.narrowed(labels.Set(e.Object.GetLabels())))
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(q, f.relabelled(labels.Set(e.ObjectOld.GetLabels()), labels.Set(e.ObjectNew.GetLabels())))
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
			add(q, f.narrowed(labels.Set(e.Object.GetLabels())))
		},
	}
}

func requestFor(ring string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: ring}}
}
