package kinds_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/kinds"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }

// mapperOf returns the mapper that kubectl uses.
func mapperOf(t *testing.T, config *rest.Config) meta.RESTMapper {
	t.Helper()

	client, err := discovery.NewDiscoveryClientForConfig(config)
	require.NoError(t, err)

	cached := memory.NewMemCacheClient(client)

	return restmapper.NewShortcutExpander(restmapper.NewDeferredDiscoveryRESTMapper(cached), cached, nil)
}

// TestNamesOfTypes covers the names that kubectl accepts.
func TestNamesOfTypes(t *testing.T) {
	mapper := mapperOf(t, localplane.Shared(t).Config)
	configMaps := kinds.Type{Resource: "configmaps"}
	deployments := kinds.Type{Group: "apps", Resource: "deployments"}

	rings := kinds.Type{Group: "sharding.timebertt.dev", Resource: "clusterrings", ClusterScoped: true}
	for written, want := range map[string]kinds.Type{
		"configmaps": configMaps, "configmap": configMaps, "cm": configMaps, "ConfigMap": configMaps, "CM": configMaps,
		"configmaps.v1.": configMaps,
		"deployments":    deployments, "deploy": deployments, "deployment.apps": deployments, "Deployment.apps": deployments,
		"deployments.v1.apps": deployments, "Deployment.v1.apps": deployments,
		"clusterrings": rings, "ClusterRing": rings, "clusterring.sharding.timebertt.dev": rings,
		"clusterrings.v1alpha1.sharding.timebertt.dev": rings,
		"nodes": {Resource: "nodes", ClusterScoped: true},
	} {
		got, err := kinds.Resolve(mapper, written)
		require.NoError(t, err, written)
		require.Equal(t, want, got, written)
	}

	for _, written := range []string{"nothing", "deployments.extensions", "deployments.v1.batch"} {
		_, err := kinds.Resolve(mapper, written)
		require.ErrorContains(t, err, "the cluster has no type", written)
	}

	nowhere := mapperOf(t, &rest.Config{Host: "https://127.0.0.1:1"})
	_, err := kinds.Resolve(nowhere, "configmaps")
	require.ErrorContains(t, err, "connection refused")
	require.ErrorContains(t, err, "--endpoint")
}

// TestWithoutACluster verifies that names are used as they are written.
func TestWithoutACluster(t *testing.T) {
	for written, want := range map[string]kinds.Type{
		"websites.example.org": {Group: "example.org", Resource: "websites"},
		"configmaps":           {Resource: "configmaps"},
		"Website.example.org":  {Group: "example.org", Kind: "Website"},
	} {
		got, err := kinds.Resolve(nil, written)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	for _, written := range []string{"", ".apps"} {
		_, err := kinds.Resolve(nil, written)
		require.ErrorContains(t, err, "names no type", written)
	}
}
