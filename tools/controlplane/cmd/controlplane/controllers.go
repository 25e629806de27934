package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/apiserver/pkg/server/mux"
	"k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/controller-manager/pkg/informerfactory"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/clusterroleaggregation"
	"k8s.io/kubernetes/pkg/controller/garbagecollector"
	"k8s.io/kubernetes/pkg/controller/namespace"
	"k8s.io/kubernetes/pkg/controller/serviceaccount"
)

const (
	workers = 20
	// syncPeriod is how often the garbage collector asks for new resources, as in kube-controller-manager.
	syncPeriod = 30 * time.Second
)

// controllers starts a controller of Kubernetes. Those of workloads, volumes, and nodes are missing, and with them a
// fifth of the packages: nothing runs Pods here.
var controllers = map[string]func(context.Context, *shared) (run func(context.Context), err error){
	"clusterrole-aggregation-controller": newClusterRoleAggregation,
	"garbage-collector-controller":       newGarbageCollector,
	"namespace-controller":               newNamespaceController,
	"serviceaccount-controller":          newServiceAccountController,
}

// shared is what the controllers share.
type shared struct {
	client    kubernetes.Interface
	metadata  metadata.Interface
	informers informers.SharedInformerFactory
	objects   metadatainformer.SharedInformerFactory
	started   chan struct{} // closed when the informers are started
}

// newControllerManager returns the command. Its flags are those of kube-controller-manager that it supports.
func newControllerManager() *cobra.Command {
	o := managerOptions{serving: options.NewSecureServingOptions().WithLoopback(),
		names: slices.Sorted(maps.Keys(controllers))}
	c := &cobra.Command{
		Use:   "kube-controller-manager",
		Short: "Collect garbage, empty deleted namespaces, create service accounts, and aggregate cluster roles",
		Args:  cobra.NoArgs, SilenceUsage: true,
		RunE: func(*cobra.Command, []string) error {
			return o.run(genericapiserver.SetupSignalContext())
		},
	}

	flags := c.Flags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `file` of the API server (required)")
	flags.StringSliceVar(&o.names, "controllers", o.names, "`names` of the controllers to run")
	flags.Float32Var(&o.qps, "kube-api-qps", 20, "requests per second to the API server")
	flags.IntVar(&o.burst, "kube-api-burst", 30, "requests at once to the API server")
	flags.Bool("leader-elect", false, "must be false: there is one process")
	o.serving.AddFlags(flags)

	return c
}

// managerOptions are the options of the command.
type managerOptions struct {
	kubeconfig string
	names      []string
	qps        float32
	burst      int
	serving    *options.SecureServingOptionsWithLoopback
}

// run runs the controllers until the context ends.
func (o *managerOptions) run(ctx context.Context) error {
	s, err := o.shared()
	if err != nil {
		return err
	}

	if err := o.serve(ctx); err != nil {
		return err
	}

	var group wait.Group

	for _, name := range o.names {
		start, known := controllers[name]
		if !known {
			return fmt.Errorf("--controllers: there is no %q, only %v", name, slices.Sorted(maps.Keys(controllers)))
		}

		run, err := start(ctx, s)
		if err != nil {
			return fmt.Errorf("start %s: %w", name, err)
		}
		group.StartWithContext(ctx, run)
	}

	s.informers.Start(ctx.Done())
	s.objects.Start(ctx.Done())
	close(s.started)

	<-ctx.Done()
	group.Wait()

	return nil
}

func (o *managerOptions) shared() (*shared, error) {
	if o.kubeconfig == "" {
		return nil, errors.New("--kubeconfig is required")
	}

	config, err := clientcmd.BuildConfigFromFlags("", o.kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}

	config.QPS, config.Burst = o.qps, o.burst

	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	objects, err := metadata.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}

	return &shared{
		client: client, metadata: objects, started: make(chan struct{}),
		informers: informers.NewSharedInformerFactory(client,
			0), objects: metadatainformer.NewSharedInformerFactory(objects, 0),
	}, nil
}

// serve answers /healthz over TLS, with a certificate of its own, until the context ends.
func (o *managerOptions) serve(ctx context.Context) error {
	if err := o.serving.MaybeDefaultWithSelfSignedCerts("localhost", nil, nil); err != nil {
		return fmt.Errorf("make a certificate (--cert-dir): %w", err)
	}

	var (
		serving  *genericapiserver.SecureServingInfo
		loopback *rest.Config
	)
	if err := o.serving.ApplyTo(&serving, &loopback); err != nil {
		return fmt.Errorf("listen (--bind-address, --secure-port): %w", err)
	}

	handler := mux.NewPathRecorderMux("kube-controller-manager")
	healthz.InstallHandler(handler)

	if _, _, err := serving.Serve(handler, 0, ctx.Done()); err != nil {
		return fmt.Errorf("serve /healthz: %w", err)
	}

	return nil
}

func newGarbageCollector(ctx context.Context, s *shared) (func(context.Context), error) {
	cached := memory.NewMemCacheClient(s.client.Discovery())
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(cached)
	factory := informerfactory.NewInformerFactory(s.informers, s.objects)
	graph := garbagecollector.NewDependencyGraphBuilder(ctx, s.metadata, mapper,
		garbagecollector.DefaultIgnoredResources(), factory, s.started)

	collector, err := garbagecollector.NewComposedGarbageCollector(ctx, s.client, s.metadata, mapper, graph)
	if err != nil {
		return nil, err
	}

	return func(ctx context.Context) {
		var group wait.Group
		group.Start(func() { collector.Run(ctx, workers, syncPeriod) })
		group.Start(func() { collector.Sync(ctx, s.client.Discovery(), syncPeriod) })
		group.Wait()
	}, nil
}

func newNamespaceController(ctx context.Context, s *shared) (func(context.Context), error) {
	c := namespace.NewNamespaceController(ctx, s.client, s.metadata,
		s.client.Discovery().ServerPreferredNamespacedResources,
		s.informers.Core().V1().Namespaces(), 5*time.Minute, corev1.FinalizerKubernetes)

	return func(ctx context.Context) { c.Run(ctx, workers) }, nil
}

func newServiceAccountController(ctx context.Context, s *shared) (func(context.Context), error) {
	c, err := serviceaccount.NewServiceAccountsController(klog.FromContext(ctx), s.informers.Core().V1().ServiceAccounts(),
		s.informers.Core().V1().Namespaces(), s.client, serviceaccount.DefaultServiceAccountsControllerOptions())

	return func(ctx context.Context) { c.Run(ctx, 1) }, err
}

func newClusterRoleAggregation(_ context.Context, s *shared) (func(context.Context), error) {
	c := clusterroleaggregation.NewClusterRoleAggregation(s.informers.Rbac().V1().ClusterRoles(), s.client.RbacV1())

	return func(ctx context.Context) { c.Run(ctx, 5) }, nil
}
