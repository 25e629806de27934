// Command worker is a shard for objects of any kinds. It runs in fault runs, for rings that the example knows nothing of.
//
// For each object of its main kinds it makes one that the object controls, and says in the object's status that this is done;
// on each of the controlled objects it leaves a mark.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/example/history"
)

// options are the flags.
type options struct {
	shard.Options
	kubeconfig, historyFile, childNamespace string
	workDuration                            time.Duration
	kinds                                   []string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, parse()); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1) //nolint:gocritic // nothing is deferred that the end of the process does not do
	}
}

func parse() options {
	var o options
	pflag.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server")
	pflag.StringVar(&o.Ring, "ring", "", "name of the ClusterRing")
	pflag.StringVar(&o.Name, "shard-name", "", "name of the shard and its Lease")
	pflag.StringVar(&o.Namespace, "lease-namespace", "", "namespace of the Lease")
	pflag.DurationVar(&o.LeaseDuration, "lease-duration", 0, "how long the Lease is healthy after a renewal")
	pflag.DurationVar(&o.RenewDeadline, "lease-renew-deadline", 0, "how long to try to renew the Lease")
	pflag.DurationVar(&o.RetryPeriod, "lease-retry-period", 0, "time between renewals")
	pflag.DurationVar(&o.workDuration, "work-duration", 0, "make each reconcile take longer by this time")
	pflag.StringVar(&o.historyFile, "history-file", "", "append each reconcile's start and end to this file")
	pflag.StringVar(&o.childNamespace, "child-namespace", "", "namespace of what cluster-scoped objects control")
	pflag.StringArrayVar(&o.kinds, "main", nil, "a main kind and the one that it controls, as Kind.version.group=Kind.version.group")
	pflag.Parse()
	return o
}

func run(ctx context.Context, o options) error {
	ctrl.SetLogger(funcr.New(func(prefix, args string) { fmt.Fprintln(os.Stderr, prefix, args) }, funcr.Options{LogTimestamp: true}))
	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 100, 200
	s, err := shard.New(o.Options)
	if err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}
	kinds := map[schema.GroupVersionKind]schema.GroupVersionKind{}
	var objects []client.Object
	for _, arg := range o.kinds {
		main, controlled, _ := strings.Cut(arg, "=")
		m, _ := schema.ParseKindArg(main)
		c, _ := schema.ParseKindArg(controlled)
		if m == nil || c == nil {
			return fmt.Errorf("--main %q: want Kind.version.group=Kind.version.group", arg)
		}
		kinds[*m] = *c
		objects = append(objects, empty(*m), empty(*c))
	}
	managerOptions := ctrl.Options{
		Scheme: clientgoscheme.Scheme, Metrics: server.Options{BindAddress: "0"}, HealthProbeBindAddress: "0",
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	}
	if err := s.ConfigureManager(config, &managerOptions, objects...); err != nil {
		return fmt.Errorf("set up the shard: %w", err)
	}
	mgr, err := ctrl.NewManager(config, managerOptions)
	if err != nil {
		return fmt.Errorf("set up the manager: %w", err)
	}
	file, err := os.OpenFile(o.historyFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}
	w := &worker{
		options: o, controlled: kinds, manager: mgr, shard: s, client: s.Client(mgr.GetClient()),
		recorder: history.NewRecorder(file, os.Getpid(), s.Name(), now),
	}
	for _, obj := range objects {
		if err := w.add(obj.GetObjectKind().GroupVersionKind()); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	if err := mgr.Start(ctx); err != nil {
		return fmt.Errorf("run the shard: %w", err) // workers may still write their history
	}
	if err := file.Close(); err != nil {
		return fmt.Errorf("close the history: %w", err)
	}
	return nil
}

// now is a point in time, by a clock that all processes share.
func now() history.Stamp {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // every system that this builds for has it
	return history.Stamp{Time: time.Now(), Monotonic: ts.Nano()}
}

// worker has one controller for each kind.
type worker struct {
	options
	controlled map[schema.GroupVersionKind]schema.GroupVersionKind // by main kind
	manager    ctrl.Manager
	shard      *shard.Shard
	client     client.Client
	recorder   *history.Recorder
}

// empty returns an object of the kind without anything.
func empty(gvk schema.GroupVersionKind) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	return u
}

func (w *worker) add(gvk schema.GroupVersionKind) error {
	obj, name := empty(gvk), strings.ToLower(gvk.Kind)
	inner := reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		return w.mark(ctx, gvk, req)
	})
	if controlled, main := w.controlled[gvk]; main {
		inner = func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
			return w.complete(ctx, empty(gvk), empty(controlled), req)
		}
	}
	recorded := w.recorder.Reconciler(history.Subject{Controller: name, Object: obj, Reader: w.manager.GetClient()},
		history.Delay(clock.RealClock{}, w.workDuration, inner))
	err := ctrl.NewControllerManagedBy(w.manager).Named(name).For(obj, builder.WithPredicates(w.shard.Predicate())).
		Complete(w.shard.Reconciler(w.client, obj, recorded))
	if err != nil {
		return fmt.Errorf("set up the controller of %s: %w", name, err)
	}
	return nil
}

// complete does the work on a main object.
func (w *worker) complete(ctx context.Context, obj, child *unstructured.Unstructured, req reconcile.Request) (reconcile.Result, error) {
	if err := w.client.Get(ctx, req.NamespacedName, obj); err != nil || obj.GetDeletionTimestamp() != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if err := w.ensure(ctx, obj, child); err != nil {
		return reconcile.Result{}, err
	}
	// Websites have such a status, which the example writes, too. Whoever comes second has nothing to do.
	observed, _, _ := unstructured.NestedInt64(obj.Object, "status", "observedGeneration")
	if observed == obj.GetGeneration() {
		return reconcile.Result{}, nil
	}
	before := obj.DeepCopy()
	obj.Object["status"] = map[string]any{"observedGeneration": obj.GetGeneration(), "conditions": []any{map[string]any{
		"type": "Ready", "status": "True", "reason": "Rendered", "message": "the page is in the ConfigMap",
		"observedGeneration": obj.GetGeneration(), "lastTransitionTime": time.Now().UTC().Format(time.RFC3339),
	}}}
	return again(w.client.Status().Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// ensure makes what an object controls.
func (w *worker) ensure(ctx context.Context, obj, child *unstructured.Unstructured) error {
	child.SetNamespace(cmp.Or(obj.GetNamespace(), w.childNamespace))
	child.SetName(strings.ToLower(obj.GetKind()) + "-" + w.Ring + "-" + obj.GetName())
	err := w.client.Get(ctx, client.ObjectKeyFromObject(child), child.DeepCopy())
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read what it controls: %w", err)
	}
	if err == nil {
		return nil
	}
	if err := ctrl.SetControllerReference(obj, child, w.client.Scheme()); err != nil {
		return fmt.Errorf("control an object: %w", err)
	}
	err = w.client.Create(ctx, child)
	if client.IgnoreAlreadyExists(err) != nil { // it may be there without its label
		return fmt.Errorf("make what it controls: %w", err)
	}
	return nil
}

// mark does the work on a controlled object.
func (w *worker) mark(ctx context.Context, gvk schema.GroupVersionKind, req reconcile.Request) (reconcile.Result, error) {
	obj := empty(gvk)
	if err := w.client.Get(ctx, req.NamespacedName, obj); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	key := "faults.clusterring.dev/" + w.Ring
	if obj.GetAnnotations()[key] != "" {
		return reconcile.Result{}, nil
	}
	before := obj.DeepCopy()
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = "seen"
	obj.SetAnnotations(annotations)
	return again(w.client.Patch(ctx, obj, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})))
}

// again has a write tried once more if somebody else wrote in between.
func again(err error) (reconcile.Result, error) {
	const soon = 100 * time.Millisecond
	if apierrors.IsConflict(err) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	return reconcile.Result{}, client.IgnoreNotFound(err)
}
