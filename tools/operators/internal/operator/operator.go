// Package operator contains what the operators of this module have in common, and what a test of them needs: flags, the
// identity of the shard, and a manager that records reconciles. An operator that is adopted needs none of it.
package operator

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/clusterring/clusterring/pkg/shard"
	"github.com/clusterring/clusterring/tools/testkit/history"
)

// workers is how many objects a shard works on at a time.
const workers = 5

// Operator is an operator of somebody else in this process.
type Operator struct {
	// Shard are the options of the shard.
	Shard shard.Options
	// Scheme knows the types of Kubernetes. The operator adds its own.
	Scheme *runtime.Scheme

	history, probes string
	recorder        *history.Recorder
}

// Main reads the flags, and runs the operator until a signal arrives. It returns the exit code.
func Main(run func(context.Context, *rest.Config, *Operator) error) int {
	o := &Operator{Scheme: runtime.NewScheme()}
	flag.StringVar(&o.Shard.Ring, "clusterring", "", "name of the ClusterRing")
	flag.StringVar(&o.Shard.Namespace, "lease-namespace", "", "namespace of the Lease; default: that of the Pod")
	flag.StringVar(&o.Shard.Name, "shard", "", "name of the shard; default: the host name")
	flag.DurationVar(&o.Shard.LeaseDuration, "lease-duration", 15*time.Second,
		"how long the Lease is healthy after a renewal")
	flag.DurationVar(&o.Shard.RenewDeadline, "renew-deadline", 0,
		"how long to work without a renewal; default: two thirds of the duration")
	flag.DurationVar(&o.Shard.RetryPeriod, "retry-period", 0,
		"time between renewals; default: two fifteenths of the duration")
	flag.StringVar(&o.history, "history", os.DevNull, "file to append the start and the end of each reconcile to")
	flag.StringVar(&o.probes, "health-probe-bind-address", "0", "address of /readyz; 0 for none")

	_ = flag.CommandLine.Parse(os.Args[1:]) // it ends the process after an error

	ctrl.SetLogger(klog.Background())
	utilruntime.Must(clientgoscheme.AddToScheme(o.Scheme))

	if err := o.main(ctrl.SetupSignalHandler(), run); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)

		return 1
	}

	return 0
}

func (o *Operator) main(ctx context.Context, run func(context.Context, *rest.Config, *Operator) error) error {
	restConfig, err := ctrl.GetConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}

	restConfig.QPS, restConfig.Burst = 200, 400

	file, err := history.Open(o.history)
	if err != nil {
		return fmt.Errorf("open the history: %w", err)
	}

	o.recorder = history.NewRecorder(file, os.Getpid(), func() string { return o.Shard.Name }, history.Now)

	return run(ctx, restConfig, o) // the file stays open: workers may still write
}

// ManagerOptions returns the options of a manager as an operator has them: with a leader election.
func (o *Operator) ManagerOptions(electionID string) manager.Options {
	return manager.Options{
		Scheme: o.Scheme, Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: o.probes,
		LeaderElection: true, LeaderElectionID: electionID, LeaderElectionNamespace: o.Shard.Namespace,
		Controller: config.Controller{MaxConcurrentReconciles: workers},
	}
}

// Recording returns a function that records the work of a controller that has no manager. The object is one of the kind
// that it works on.
func (o *Operator) Recording(restConfig *rest.Config, controller string, object client.Object,
	sync shard.SyncFunc) (shard.SyncFunc, error) {
	c, err := client.New(restConfig, client.Options{Scheme: o.Scheme})
	if err != nil {
		return nil, fmt.Errorf("create the client of the record: %w", err)
	}

	recorded := o.recorder.Reconciler(history.Subject{Controller: controller, Object: object, Reader: c},
		reconcile.Func(func(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, sync(ctx, request.NamespacedName)
		}))

	return func(ctx context.Context, name types.NamespacedName) error {
		_, err := recorded.Reconcile(ctx, reconcile.Request{NamespacedName: name})

		return err //nolint:wrapcheck // it is that of sync
	}, nil
}

// Serve answers probes until the process ends, for a program that has no manager.
func (o *Operator) Serve() {
	ready := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	go func() {
		if o.probes != "0" {
			utilruntime.HandleError(http.ListenAndServe(o.probes, ready)) //nolint:gosec // nobody but the kubelet asks
		}
	}()
}

// Recorded returns the manager, which records the reconciles of one of its controllers. The object is one of the kind
// that it reconciles.
func (o *Operator) Recorded(mgr manager.Manager, controller string, object client.Object) (manager.Manager, error) {
	if err := mgr.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return nil, fmt.Errorf("set up the probe: %w", err)
	}

	return &recording{Manager: mgr, name: controller, recorder: o.recorder, subject: history.Subject{
		Controller: controller, Object: object, Reader: mgr.GetClient(),
	}}, nil
}

// recording wraps the reconciler of a controller that is added to the manager.
type recording struct {
	manager.Manager

	name     string
	recorder *history.Recorder
	subject  history.Subject
}

// Add implements manager.Manager.
func (m *recording) Add(r manager.Runnable) error {
	if v := reflect.Indirect(reflect.ValueOf(r)); v.Kind() == reflect.Struct {
		if name := v.FieldByName("Name"); name.IsValid() && name.String() == m.name {
			do := v.FieldByName("Do")
			inner, ok := reflect.TypeAssert[reconcile.Reconciler](do)

			if !ok {
				return fmt.Errorf("record controller %q: it has no reconciler", m.name)
			}

			do.Set(reflect.ValueOf(m.recorder.Reconciler(m.subject, inner)))
		}
	}

	return m.Manager.Add(r) //nolint:wrapcheck // it is the manager's
}
