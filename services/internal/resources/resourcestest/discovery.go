// Package resourcestest provides a fake discovery for tests.
package resourcestest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/resources"
)

// Discovery is a fake API server that only supports discovery, with one version of each group. Its zero value serves
// ConfigMaps. It is safe for concurrent use.
type Discovery struct {
	mu     sync.Mutex
	served []resources.Resource
	err    error
	asked  int
}

// Serve makes it serve these resources in addition to ConfigMaps, and answer again.
func (d *Discovery) Serve(served ...resources.Resource) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.served, d.err = served, nil
}

// Fail makes it refuse to answer.
func (d *Discovery) Fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.err = err
}

// Asked returns how often it was queried.
func (d *Discovery) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.asked
}

// GroupsAndResources implements resources.Discovery.
func (d *Discovery) GroupsAndResources(context.Context) ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	d.mu.Lock()
	defer d.mu.Unlock()

	d.asked++

	if d.err != nil {
		return nil, nil, d.err
	}

	lists := map[schema.GroupVersion]*metav1.APIResourceList{
		{Version: "v1"}:       {},
		v1alpha1.GroupVersion: {},
	}

	for _, r := range append([]resources.Resource{configMaps}, d.served...) {
		gv := r.GVR.GroupVersion()
		if lists[gv] == nil {
			lists[gv] = &metav1.APIResourceList{}
		}

		lists[gv].APIResources = append(lists[gv].APIResources, metav1.APIResource{
			Name: r.GVR.Resource, Kind: r.Kind.Kind, Namespaced: r.Namespaced, Verbs: Verbs,
		})
	}

	var (
		groups []*metav1.APIGroup
		all    []*metav1.APIResourceList
	)

	for gv, list := range lists {
		list.GroupVersion = gv.String()
		all = append(all, list)
		version := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
		groups = append(groups, &metav1.APIGroup{
			Name: gv.Group, Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version,
		})
	}

	return groups, all, nil
}

// Verbs are the verbs that sharding needs. Do not change them.
var Verbs = metav1.Verbs{"get", "list", "patch", "watch"}

var configMaps = Namespaced("", "v1", "configmaps", "ConfigMap")

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

	if err := r.Await(ctx); err != nil && !errors.Is(err, d.failure()) {
		t.Fatal(err)
	}

	return r
}

func (d *Discovery) failure() error {
	d.mu.Lock()
	defer d.mu.Unlock()

	return d.err
}
