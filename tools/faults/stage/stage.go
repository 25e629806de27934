// Package stage runs the services and some shards of the example controller through one scenario, with a fault in it, and
// says which promises were broken.
//
// Every process is a real one, with the rights of its service account, and reaches the API server through a proxy of its own.
// Runs follow one another on one control plane, in one namespace, under the same names: since names decide about owners, a
// run without a fault moves the same objects each time. Each run starts with new processes and nothing left of the one before.
package stage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/localplane"
)

const (
	// Ring is the ring of every run, Namespace holds its objects.
	Ring = "faults"
	// Namespace is the one that the ring selects.
	Namespace = "faults"

	// shardNamespace and shardAccount are those of deploy/example.
	shardNamespace = "example"
	shardAccount   = "example-shard"

	pollInterval = 50 * time.Millisecond
	stopTimeout  = 15 * time.Second
)

// Services are the names of the services' binaries.
const (
	LeaseMonitor = "leasemonitor"
	Assigner     = "assigner"
	Rebalancer   = "rebalancer"
)

// Packages are those of the binaries that [New] wants to find, by their directories from the root of the repository. A binary
// has the last part of that as its name.
var Packages = []string{
	"services/leasemonitor/cmd/leasemonitor", "services/assigner/cmd/assigner", "services/rebalancer/cmd/rebalancer",
	"tools/example/cmd/example",
}

// Stage is where runs happen. [New] makes it. One run at a time.
type Stage struct {
	plane       *localplane.Plane
	client      client.Client
	bin         string
	kubeconfigs map[string]string // by binary

	mu      sync.Mutex
	current *World
}

// Abort ends the processes of the run that is under way, if there is one, for the calling process is about to end.
func (s *Stage) Abort() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil {
		_ = s.current.endAll() // there is nobody left to tell
	}
}

func (s *Stage) setCurrent(w *World) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = w
}

// New prepares a control plane. The directory holds the binaries of the services and of the example.
func New(ctx context.Context, plane *localplane.Plane, bin string) (*Stage, error) {
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme), examplev1alpha1.AddToScheme(scheme)); err != nil {
		return nil, fmt.Errorf("make a scheme: %w", err)
	}
	err := plane.Install(ctx, "deploy/base", "deploy/example/crd", "deploy/example/namespace.yaml",
		"deploy/example/rbac.yaml", "deploy/example/services-rbac.yaml")
	if err != nil {
		return nil, fmt.Errorf("install the manifests: %w", err)
	}
	s := &Stage{plane: plane, bin: bin, kubeconfigs: map[string]string{}}
	if s.client, err = client.New(plane.Config, client.Options{Scheme: scheme}); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	for binary, account := range map[string][2]string{
		LeaseMonitor: {v1alpha1.SystemNamespace, LeaseMonitor}, Assigner: {v1alpha1.SystemNamespace, Assigner},
		Rebalancer: {v1alpha1.SystemNamespace, Rebalancer}, shardBinary: {shardNamespace, shardAccount},
	} {
		if s.kubeconfigs[binary], err = plane.ServiceAccountKubeconfig(ctx, account[0], account[1]); err != nil {
			return nil, fmt.Errorf("get the rights of %s: %w", binary, err)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace}}
	if err := client.IgnoreAlreadyExists(s.client.Create(ctx, namespace)); err != nil {
		return nil, fmt.Errorf("create the namespace of the runs: %w", err)
	}
	return s, nil
}

// newRing returns the ring of a run.
func newRing() *v1alpha1.ClusterRing {
	return &v1alpha1.ClusterRing{
		ObjectMeta: metav1.ObjectMeta{Name: Ring},
		Spec: v1alpha1.ClusterRingSpec{
			Resources: []v1alpha1.RingResource{{
				Group: examplev1alpha1.SchemeGroupVersion.Group, Resource: "websites",
				ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
			}},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: Namespace}},
		},
	}
}

// clear removes all that a run has left, whatever state it is in. No service may run.
func (s *Stage) clear(ctx context.Context) error {
	ring := newRing()
	none := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	ofRing := client.MatchingLabels{v1alpha1.LabelClusterRing: Ring}
	err := errors.Join(
		client.IgnoreNotFound(s.client.Patch(ctx, ring, none)),
		client.IgnoreNotFound(s.client.Delete(ctx, ring)),
		s.client.DeleteAllOf(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{}, ofRing),
		s.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(shardNamespace)),
		s.client.DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(v1alpha1.SystemNamespace)),
		s.client.DeleteAllOf(ctx, &corev1.Secret{}, client.InNamespace(v1alpha1.SystemNamespace)),
		s.client.DeleteAllOf(ctx, &examplev1alpha1.Website{}, client.InNamespace(Namespace)),
		s.client.DeleteAllOf(ctx, &corev1.ConfigMap{}, client.InNamespace(Namespace)),
	)
	if err != nil {
		return fmt.Errorf("clear away the run before: %w", err)
	}
	return nil
}

// kubeconfigPath is where a process finds its kubeconfig: in the directory of the control plane, so that whoever clears up
// after a killed parent finds the process by it.
func (s *Stage) kubeconfigPath(name string) string {
	return filepath.Join(s.plane.Dir(), "kubeconfig", "faults-"+name+".yaml")
}
