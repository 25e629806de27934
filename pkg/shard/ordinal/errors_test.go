package ordinal_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/clusterring/clusterring/pkg/internal/testenv"
	"github.com/clusterring/clusterring/pkg/shard/ordinal"
)

func TestWhatHasNoOrdinal(t *testing.T) {
	f := newFixture(t, 1)

	of := func(name string) error {
		_, err := ordinal.New(t.Context(), testenv.Config(t), ordinal.Options{PodName: name, Namespace: f.namespace})
		return err
	}

	require.ErrorContains(t, of("web"), `pod name: "web" contains no ordinal: only Pods of a StatefulSet have an ordinal`)
	require.ErrorContains(t, of("web-x7k2p"), `"web-x7k2p" does not end with an ordinal`)
	require.ErrorContains(t, of("web-01"), `"web-01" does not end with an ordinal`)
	require.ErrorContains(t, of("web-99999999999"), `does not end with an ordinal`)
	require.ErrorContains(t, of("other-0"), "no StatefulSet "+f.namespace+"/other exists, which Pod other-0 should belong to")
	require.NoError(t, of("web-7"), "it is outside of the replicas, and works on nothing")

	require.ErrorContains(t, of("front-24567"), "only Pods of a StatefulSet have an ordinal, as web-0 does", "the suffix of a Pod of a Deployment may be a number")
}

func TestStatefulSetThatMayNotBeRead(t *testing.T) {
	f := newFixture(t, 1)
	config := testenv.Config(t)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + f.namespace + ":controller"}

	_, err := ordinal.New(t.Context(), config, ordinal.Options{PodName: "web-0", Namespace: f.namespace})
	require.ErrorContains(t, err, "grant get, list, and watch on statefulsets (API group apps, resource name web) in namespace "+f.namespace)
}

func TestOptionsThatAreRefused(t *testing.T) {
	_, err := ordinal.New(t.Context(), testenv.Config(t), ordinal.Options{PodName: "Web-0", Namespace: "a/b"})
	require.ErrorContains(t, err, `name: "Web-0" is invalid`)
	require.ErrorContains(t, err, `namespace: "a/b" is invalid`)

	_, err = ordinal.New(t.Context(), testenv.Config(t), ordinal.Options{PodName: "web-0"})
	require.ErrorContains(t, err, "namespace: set it")
}

func TestManagersWithALeader(t *testing.T) {
	f := newFixture(t, 1)
	p, err := ordinal.New(t.Context(), testenv.Config(t), ordinal.Options{PodName: "web-0", Namespace: f.namespace})
	require.NoError(t, err)
	require.ErrorContains(t, p.ConfigureManager(&manager.Options{LeaderElection: true}), "remove the leader election")
	require.Equal(t, 0, p.Ordinal())
}
