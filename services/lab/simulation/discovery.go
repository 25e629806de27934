package simulation

import (
	"context"
	"errors"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiversion "k8s.io/apimachinery/pkg/version"
	clientdiscovery "k8s.io/client-go/discovery"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/services/lab/simulation/apiserver"
)

// discovery is the discovery API of the API server for one client. It implements resources.Discovery.
type discovery struct{ client *apiserver.Client }

// GroupsAndResources queries once.
func (d discovery) GroupsAndResources(ctx context.Context) (groups []*metav1.APIGroup,
	lists []*metav1.APIResourceList, err error) {
	err = d.client.Call(ctx, "get", schema.GroupResource{Resource: "discovery"}, func() error {
		groups, lists, err = discovered(d.client.Discover())
		return err
	})

	return groups, lists, err
}

// discovered returns the discovery of resources that are served in this way. The error names the versions of which
// nothing is known, because a server is down.
func discovered(all map[schema.GroupResource]apiserver.Served) (groups []*metav1.APIGroup,
	lists []*metav1.APIResourceList, err error) {
	down := map[schema.GroupVersion]error{}
	byVersion := map[schema.GroupVersion]*metav1.APIResourceList{}
	byGroup := map[string]*metav1.APIGroup{}

	add := func(gv schema.GroupVersion, resource ...metav1.APIResource) {
		g, ok := byGroup[gv.Group]
		if !ok {
			g = &metav1.APIGroup{Name: gv.Group}
			byGroup[gv.Group] = g
			groups = append(groups, g)
		}

		list, ok := byVersion[gv]
		if !ok {
			list = &metav1.APIResourceList{GroupVersion: gv.String()}
			byVersion[gv] = list
			lists = append(lists, list)
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
		}

		list.APIResources = append(list.APIResources, resource...)
	}

	add(schema.GroupVersion{Version: "v1"})
	add(v1alpha1.GroupVersion)

	for _, gr := range sortedKeys(all) {
		how := all[gr]
		for _, v := range append([]string{how.Version}, how.Others...) {
			if how.Down {
				down[schema.GroupVersion{Group: gr.Group, Version: v}] = errDown
				continue
			}

			add(schema.GroupVersion{Group: gr.Group, Version: v}, metav1.APIResource{
				Name: gr.Resource, SingularName: gr.Resource[:len(gr.Resource)-1], Kind: how.Kind, Namespaced: how.Namespaced,
				Verbs: metav1.Verbs{"get", "list", "patch", "watch"},
			})
		}
	}

	lists = slices.DeleteFunc(lists, func(l *metav1.APIResourceList) bool {
		gv, _ := schema.ParseGroupVersion(l.GroupVersion)
		return down[gv] != nil
	})

	for _, g := range groups {
		// The order of the API server: v1 before v1beta1, v2 before v1.
		slices.SortFunc(g.Versions, func(a, b metav1.GroupVersionForDiscovery) int {
			return -apiversion.CompareKubeAwareVersionStrings(a.Version, b.Version)
		})
		g.PreferredVersion = g.Versions[0]
	}

	if len(down) > 0 {
		err = &clientdiscovery.ErrGroupDiscoveryFailed{Groups: down}
	}

	return groups, lists, err
}

var errDown = errors.New("the server is currently unable to handle the request")
