// Package faultrun runs the services and some shards of the example controller through one scenario with a fault, and
// reports violated guarantees.
//
// Every process is a real one, has the permissions of its service account, and reaches the API server through its own
// proxy. Runs follow one another on one control plane, in the same namespaces and with the same names. Because owners
// depend on names only, every run without a fault moves the same objects. Each run starts with new processes, and
// without objects of earlier runs.
package faultrun

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/lab/system"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

const (
	// sharderAccount is that of shards which may be elected as the sharder of the ring: see embedded.yaml.
	sharderAccount = "faults-sharder"

	stopTimeout = 15 * time.Second
)

// The binaries of the services.
const (
	LeaseMonitor = services.LeaseMonitor
	Assigner     = services.Assigner
	Rebalancer   = services.Rebalancer
	RingQuery    = services.RingQuery
)

// The binaries of shards.
const (
	shardBinary = "example"
	otherBinary = "shards" // see tools/faults/cmd/shards
)

// viewer is the service account of the client of ringquery.
const viewer = "faults-viewer"

// Packages are the packages of the binaries that runs need, relative to the root of the repository. The name of a
// binary is the last path element.
var Packages = []string{
	"services/leasemonitor/cmd/leasemonitor", "services/assigner/cmd/assigner", "services/rebalancer/cmd/rebalancer",
	"services/ringquery/cmd/ringquery", "tools/example/cmd/example", "tools/faults/cmd/shards",
}

// Runner plays runs on one control plane, one run at a time. Make it with [New].
type Runner struct {
	plane  *localplane.Plane
	client client.Client
	bin    string
	token  string // of the viewer, for ringquery
}

// New prepares a control plane for runs. The directory bin contains the binaries of [Packages].
func New(ctx context.Context, plane *localplane.Plane, bin string) (*Runner, error) {
	s := &Runner{plane: plane, bin: bin}

	err := must.Attempt(func() {
		scheme := runtime.NewScheme()
		must.Do(errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
			examplev1alpha1.AddToScheme(scheme)))
		must.Do(plane.Install(ctx, "deploy/base", "deploy/example/crd", "deploy/example/namespace.yaml",
			"deploy/example/rbac.yaml", "deploy/example/services-rbac.yaml", "tools/faults/faultrun/extra.yaml",
			"tools/faults/faultrun/embedded.yaml"))

		s.client = must.Get(client.New(plane.Config, client.Options{Scheme: scheme}))
		s.token = must.Get(plane.Token(ctx, system.ShardNamespace, viewer, diagnosticsv1alpha1.TokenAudience))
	})
	if err != nil {
		return nil, fmt.Errorf("prepare a control plane for fault runs: %w", err)
	}

	return s, nil
}

// clear removes all objects of the previous run, and creates the namespaces of the next one. No service may be running.
func (s *Runner) clear(ctx context.Context, rings []RingSpec) {
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))

	var stored v1alpha1.ClusterRingList

	errs := []error{s.client.List(ctx, &stored)}
	for i := range stored.Items {
		errs = append(errs, client.IgnoreNotFound(s.client.Patch(ctx, &stored.Items[i], none)),
			client.IgnoreNotFound(s.client.Delete(ctx, &stored.Items[i])))
	}

	remove := func(object client.Object, of ...client.DeleteAllOfOption) {
		errs = append(errs, s.client.DeleteAllOf(ctx, object, of...))
	}

	remove(&admissionregistrationv1.MutatingWebhookConfiguration{}, client.HasLabels{contract.LabelClusterRing})
	remove(&coordinationv1.Lease{}, client.InNamespace(system.ShardNamespace))
	remove(&coordinationv1.Lease{}, client.InNamespace(contract.SystemNamespace))
	remove(&corev1.Secret{}, client.InNamespace(contract.SystemNamespace))

	if slices.ContainsFunc(rings, func(r RingSpec) bool { return r.Embedded }) {
		remove(&v1alpha1.PolicyParameter{}) // what the lease monitor of an earlier run has told the policies about the ring
	}

	for _, r := range rings {
		for _, name := range r.Namespaces {
			namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
			errs = append(errs, client.IgnoreAlreadyExists(s.client.Create(ctx, namespace)))
		}
	}

	var namespaces corev1.NamespaceList

	errs = append(errs, s.client.List(ctx, &namespaces))
	for i := range namespaces.Items {
		if in := client.InNamespace(namespaces.Items[i].Name); !strings.HasPrefix(string(in), "kube-") {
			remove(&examplev1alpha1.Website{}, in)
			remove(&examplev1alpha1.Fleet{}, in)
			remove(&examplev1alpha1.Ship{}, in)
			remove(&corev1.ConfigMap{}, in)
		}
	}

	must.Do(errors.Join(errs...))
}
