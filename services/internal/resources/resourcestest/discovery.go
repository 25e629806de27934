// Package resourcestest provides a fake discovery for tests.
package resourcestest

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Discovery is a fake API server that only supports discovery. Its zero value serves ConfigMaps. It is safe for
// concurrent use.
type Discovery struct {
	mu     sync.Mutex
	served []resources.Resource
	err    error
}

// Serve makes it serve these resources in addition to ConfigMaps, and answer again.
func (d *Discovery) Serve(served ...resources.Resource) { d.set(served, nil) }

// Fail makes it refuse to answer.
func (d *Discovery) Fail(err error) { d.set(nil, err) }

func (d *Discovery) set(served []resources.Resource, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.served, d.err = served, err
}

// GroupsAndResources implements resources.Discovery.
func (d *Discovery) GroupsAndResources(ctx context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	if d.err != nil {
		return nil, nil, d.err
	}

	lists := map[schema.GroupVersion]*metav1.APIResourceList{v1alpha1.GroupVersion: {}}

	for _, r := range append([]resources.Resource{Namespaced("", "v1", "configmaps", "ConfigMap")}, d.served...) {
		gv := r.GVR.GroupVersion()
		if lists[gv] == nil {
			lists[gv] = &metav1.APIResourceList{}
		}

		lists[gv].APIResources = append(lists[gv].APIResources, metav1.APIResource{
			Name: r.GVR.Resource, Kind: r.Kind.Kind, Namespaced: r.Namespaced, Verbs: Verbs,
		})
	}

	fake := &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{}}

	for gv, list := range lists {
		list.GroupVersion = gv.String()
		fake.Resources = append(fake.Resources, list)
	}

	return fake.ServerGroupsAndResourcesWithContext(ctx) //nolint:wrapcheck // it never fails
}

// Verbs are the verbs that sharding needs. Do not change them.
var Verbs = metav1.Verbs{"get", "list", "patch", "watch"}

// Namespaced returns a namespaced resource.
func Namespaced(group, version, resource, kind string) resources.Resource {
	gv := schema.GroupVersion{Group: group, Version: version}

	return resources.Resource{GVR: gv.WithResource(resource), Kind: gv.WithKind(kind), Namespaced: true}
}

// Resolver returns a resolver that queries d until the test ends, at real-time intervals; in a synctest bubble, this is
// virtual time. It has looked once.
func Resolver(t *testing.T, d *Discovery) *resources.Resolver {
	t.Helper()

	r := resources.NewResolver(d, clock.RealClock{}, logr.Discard())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)

	go func() { ended <- r.Start(ctx) }()

	t.Cleanup(func() {
		cancel()

		if err := <-ended; err != nil {
			t.Error(err)
		}
	})

	if err := r.Await(ctx); err != nil {
		t.Fatal(err)
	}

	return r
}
