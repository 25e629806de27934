package ringquery_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

const tenant = "example.org/tenant"

// tenants returns a ring of ConfigMaps whose key is their tenant, with three shards, and a namespace that it covers.
func (s *server) tenants() (ring, namespace string) {
	s.t.Helper()

	namespace = s.plane.Namespace(s.t)
	spec := configMaps()
	spec.NamespaceSelector = in(namespace)
	spec.Resources[0].Key = &v1alpha1.ObjectKey{Type: v1alpha1.KeyLabel, Label: tenant}
	ring, of := s.makeRing(spec)
	s.makeShards(ring, of, "a", "b", "c")

	return ring, namespace
}

// Locate reads the label of an object that exists. For another, the question has to contain it.
func TestLocateByLabel(t *testing.T) {
	s := startServer(t)
	s.grant()
	ring, ns := s.tenants()

	ask := func(name string, labels map[string]string) (*pb.Location, error) {
		res, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", ns, name), Labels: labels})
		if err != nil {
			return nil, err
		}

		return res.GetLocations()[0], nil
	}

	s.configMap(ns, "of-acme", map[string]string{tenant: "acme"})
	s.configMap(ns, "bare", nil)

	is, err := ask("of-acme", nil)
	require.NoError(t, err)
	require.Equal(t, pb.KeyType_KEY_TYPE_LABEL, is.GetPartitionKey().GetType())
	require.Equal(t, "acme", is.GetPartitionKey().GetName())
	require.False(t, is.GetKeyMissing())

	for i := range 5 {
		other, err := ask(fmt.Sprint("not-there-", i), map[string]string{tenant: "acme"})
		require.NoError(t, err)
		require.Equal(t, is.GetShard(), other.GetShard())
		require.Equal(t, is.GetHash(), other.GetHash())
	}

	bare, err := ask("bare", nil)
	require.NoError(t, err)
	require.True(t, bare.GetKeyMissing())
	require.Equal(t, pb.KeyType_KEY_TYPE_NAME, bare.GetPartitionKey().GetType())

	_, err = ask("not-there", nil)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.ErrorContains(t, err, "the key of configmaps is the label example.org/tenant")

	_, err = ask("not-there", map[string]string{"a b": "c"})
	require.Equal(t, codes.InvalidArgument, status.Code(err))
}

// GetRing counts objects and keys, so that an unequal distribution is visible.
func TestGetRingCountsKeys(t *testing.T) {
	s := startServer(t)
	s.grant()
	ring, ns := s.tenants()

	for i := range 30 {
		s.configMap(ns, fmt.Sprint("large-", i), map[string]string{tenant: "large"})
	}

	for i := range 12 {
		s.configMap(ns, fmt.Sprint("small-", i), map[string]string{tenant: fmt.Sprint("small-", i)})
	}

	for i := range 3 {
		s.configMap(ns, fmt.Sprint("bare-", i), nil)
	}

	plain, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring})
	require.NoError(t, err)
	require.Empty(t, plain.GetLoads())
	require.Equal(t, pb.KeyType_KEY_TYPE_LABEL, plain.GetRing().GetResources()[0].GetKeyType())
	require.Equal(t, tenant, plain.GetRing().GetResources()[0].GetKeyLabel())

	var objects, keys, largest, keyless int64

	require.Eventually(t, func() bool {
		res, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring, CountObjects: true})
		require.NoError(t, err)

		objects, keys, largest = 0, 0, 0

		for _, load := range res.GetLoads() {
			objects, keys, largest = objects+load.GetObjects(), keys+load.GetKeys(), max(largest, load.GetLargestKeyObjects())

			if load.GetLargestKeyObjects() == 30 {
				require.Equal(t, "large", load.GetLargestKey().GetName())
			}
		}

		keyless = res.GetCounted()[0].GetKeyless()

		return objects == 45 && len(res.GetLoads()) == 3 && !res.GetKeysLimited()
	}, patience, interval)
	require.EqualValues(t, 16, keys)
	require.EqualValues(t, 3, keyless)
	require.EqualValues(t, 30, largest)
}
