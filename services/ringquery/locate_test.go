package ringquery_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// byKind and byResource name an object of the core group.
func byKind(kind, namespace, name string) *pb.ObjectReference {
	return &pb.ObjectReference{Type: &pb.ObjectReference_Kind{Kind: kind}, Namespace: namespace, Name: name}
}

func byResource(resource, namespace, name string) *pb.ObjectReference {
	return &pb.ObjectReference{Type: &pb.ObjectReference_Resource{Resource: resource}, Namespace: namespace, Name: name}
}

func ownerByKind(kind, name string) *pb.OwnerReference {
	return &pb.OwnerReference{Type: &pb.OwnerReference_Kind{Kind: kind}, Name: name}
}

// locate returns the one location of an object.
func (s *server) locate(req *pb.LocateRequest) *pb.Location {
	s.t.Helper()

	res, err := s.Locate(s.t.Context(), req)
	require.NoError(s.t, err)
	require.Len(s.t, res.GetLocations(), 1)

	return res.GetLocations()[0]
}

func TestLocateAgreesWithTheRing(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	shards := []string{"a", "b", "c", "d"}
	s.makeShards(ring, ns, shards...)
	table := hashring.New(shards)

	for i := range 20 {
		name := fmt.Sprint("object-", i)
		k := key.Key{Kind: "ConfigMap", Namespace: "default", Name: name}
		owner, _ := table.Owner(k.Hash())

		want := &pb.Location{
			Ring:              ring,
			Role:              pb.Role_ROLE_MAIN,
			NamespaceCoverage: pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED,
			PartitionKey:      &pb.PartitionKey{Kind: "ConfigMap", Namespace: "default", Name: name, Type: pb.KeyType_KEY_TYPE_NAME},
			Hash:              uint32(k.Hash()),
			Partition:         int32(table.Partition(k.Hash())),
			Shard:             owner,
			NextShards:        table.Ranking(table.Partition(k.Hash()), 3)[1:],
			Fingerprint:       table.Fingerprint(),
		}
		for _, object := range []*pb.ObjectReference{byKind("ConfigMap", "default", name), byResource("configmaps", "default", name)} {
			got := s.locate(&pb.LocateRequest{Ring: ring, Object: object})
			require.Truef(t, proto.Equal(want, got), "want %v, got %v", want, got)
		}

		got := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "anything"), Owner: ownerByKind("ConfigMap", name)})
		want.Role = pb.Role_ROLE_CONTROLLED
		require.Truef(t, proto.Equal(want, got), "a controlled object is where its owner is: want %v, got %v", want, got)
	}
}

func TestLocateNamesAsManyNextShardsAsAskedFor(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	object := byKind("ConfigMap", "default", "x")

	alone := s.locate(&pb.LocateRequest{Ring: ring, Object: object})
	require.Empty(t, alone.GetShard(), "no shard is available")
	require.Empty(t, alone.GetNextShards())

	s.makeShards(ring, ns, "a", "b", "c", "d")

	for asked, want := range map[int32]int{0: 0, 1: 1, 3: 3, 10: 3} {
		got := s.locate(&pb.LocateRequest{Ring: ring, Object: object, NextShards: new(asked)})
		require.NotEmpty(t, got.GetShard())
		require.Len(t, got.GetNextShards(), want)
		require.NotContains(t, got.GetNextShards(), got.GetShard())
	}
}

func TestLocateWithoutRingAsksAllOfThem(t *testing.T) {
	s := startServer(t)
	// No other test uses this resource.
	spec := v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "endpoints"}}}
	object := byKind("Endpoints", "default", "x")

	one, _ := s.makeRing(spec)
	require.Equal(t, one, s.locate(&pb.LocateRequest{Object: object}).GetRing())

	two, _ := s.makeRing(spec)
	res, err := s.Locate(t.Context(), &pb.LocateRequest{Object: object})
	require.NoError(t, err)

	var rings []string
	for _, l := range res.GetLocations() {
		rings = append(rings, l.GetRing())
	}
	require.ElementsMatch(t, []string{one, two}, rings)
	require.IsIncreasing(t, rings)
}

func TestLocateOfClusterScopedObjects(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{
		Resource:            "persistentvolumes",
		ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}, {Group: "storage.k8s.io", Resource: "storageclasses"}},
	}}})
	s.makeShards(ring, ns, "a", "b")

	main := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("PersistentVolume", "", "pv")})
	require.Equal(t, pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED, main.GetNamespaceCoverage())

	child := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "default", "x"), Owner: ownerByKind("PersistentVolume", "pv")})
	require.Empty(t, child.GetPartitionKey().GetNamespace(), "the owner has no namespace")
	require.Equal(t, main.GetHash(), child.GetHash())
	require.Equal(t, main.GetShard(), child.GetShard())
}

func TestLocateSaysWhatItDoesNotKnowOfNamespaces(t *testing.T) {
	s := startServer(t)
	spec := configMaps()
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "blue"}}
	ring, _ := s.makeRing(spec)
	require.Equal(t, pb.NamespaceCoverage_NAMESPACE_COVERAGE_UNKNOWN,
		s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "default", "x")}).GetNamespaceCoverage())
}

// TestLocateFailures covers every error, with its code and message.
func TestLocateFailures(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	volumes, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
		{Resource: "services", ControlledResources: []v1alpha1.ControlledResource{{Resource: "persistentvolumes"}}},
	}})
	missing, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.com", Resource: "foos"}}})
	deleting := s.makeDeletingRing()

	for name, c := range map[string]struct {
		req   *pb.LocateRequest
		code  codes.Code
		want  string
		field string
	}{
		"no object":    {&pb.LocateRequest{}, codes.InvalidArgument, "must be set", "object"},
		"unknown ring": {&pb.LocateRequest{Ring: "no-such-ring", Object: byKind("ConfigMap", "default", "x")}, codes.NotFound, "no-such-ring", ""},
		"not in this ring": {
			&pb.LocateRequest{Ring: ring, Object: byKind("Pod", "default", "x")}, codes.FailedPrecondition,
			"ring " + ring + " does not list Pod; it lists configmaps, secrets (controlled)", "",
		},
		"in no ring": {
			&pb.LocateRequest{Object: &pb.ObjectReference{Group: "nobody.example.com", Type: &pb.ObjectReference_Kind{Kind: "Nothing"}, Name: "x"}},
			codes.FailedPrecondition, "does not list Nothing.nobody.example.com", "",
		},
		"not served": {
			&pb.LocateRequest{Ring: missing, Object: &pb.ObjectReference{
				Group: "example.com", Type: &pb.ObjectReference_Resource{Resource: "foos"}, Namespace: "default", Name: "x",
			}},
			codes.FailedPrecondition, "the API server does not serve it (yet)", "",
		},
		"ring is being deleted": {
			&pb.LocateRequest{Ring: deleting, Object: byKind("ConfigMap", "default", "x")}, codes.FailedPrecondition, "is being deleted", "",
		},
		"namespace not covered": {
			&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "kube-system", "x")}, codes.FailedPrecondition,
			"does not cover namespace kube-system", "",
		},
		"no namespace": {
			&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "", "x")}, codes.InvalidArgument, "configmaps have a namespace", "object.namespace",
		},
		"a namespace too many": {
			&pb.LocateRequest{Ring: volumes, Object: byKind("PersistentVolume", "default", "x")},
			codes.InvalidArgument, "persistentvolumes are cluster-scoped", "object.namespace",
		},
		"no owner": {
			&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "x")}, codes.FailedPrecondition, "name the owner", "",
		},
		"owner is not in the ring": {
			&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "x"), Owner: ownerByKind("Pod", "y")},
			codes.FailedPrecondition, "does not list the owner's Pod as a main resource", "",
		},
		"owner is not main": {
			&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "x"), Owner: ownerByKind("Secret", "y")},
			codes.FailedPrecondition, "does not list the owner's Secret as a main resource", "",
		},
		"owner in a namespace, object in none": {
			&pb.LocateRequest{Ring: volumes, Object: byKind("PersistentVolume", "", "x"), Owner: ownerByKind("Service", "y")},
			codes.InvalidArgument, "must be cluster-scoped", "owner",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Locate(t.Context(), c.req)
			st, _ := status.FromError(err)
			require.Equal(t, c.code, st.Code(), err)
			require.Contains(t, st.Message(), c.want)
			require.Equal(t, c.field, violated(st))
		})
	}
}

// violated returns the fields that a status names.
func violated(st *status.Status) string {
	var fields []string

	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				fields = append(fields, v.GetField())
			}
		}
	}

	return strings.Join(fields, ",")
}

// makeDeletingRing creates a ring in deletion that still has a finalizer.
func (s *server) makeDeletingRing() string {
	s.t.Helper()

	name, _ := s.makeRing(configMaps())
	get := func() *v1alpha1.ClusterRing {
		ring := &v1alpha1.ClusterRing{}
		require.NoError(s.t, s.plane.Client.Get(context.WithoutCancel(s.t.Context()), types.NamespacedName{Name: name}, ring))

		return ring
	}
	ring := get()
	ring.Finalizers = []string{"example.com/wait"}
	require.NoError(s.t, s.plane.Client.Update(s.t.Context(), ring))
	require.NoError(s.t, s.plane.Client.Delete(s.t.Context(), ring))
	s.t.Cleanup(func() {
		ring := get()
		ring.Finalizers = nil
		require.NoError(s.t, s.plane.Client.Update(context.WithoutCancel(s.t.Context()), ring))
	})
	require.Eventually(s.t, func() bool { return s.ring(name).GetRing().GetDeleting() }, patience, interval)

	return name
}

func TestResourceThatAppearsLaterIsFound(t *testing.T) {
	s := startServer(t)
	group := s.plane.Namespace(t) + ".example.com"
	ring, ns := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: group, Resource: "bars"}}})
	s.makeShards(ring, ns, "a")

	req := &pb.LocateRequest{Object: &pb.ObjectReference{Group: group, Type: &pb.ObjectReference_Kind{Kind: "Bar"}, Namespace: "default", Name: "x"}}
	_, err := s.Locate(t.Context(), req)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))

	scheme := runtime.NewScheme()
	require.NoError(t, apiextensionsv1.AddToScheme(scheme))
	admin, err := client.New(s.plane.Config, client.Options{Scheme: scheme})
	require.NoError(t, err)
	require.NoError(t, admin.Create(t.Context(), &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "bars." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group,
			Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "bars", Kind: "Bar"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}},
			}},
		},
	}))
	require.Eventually(t, func() bool {
		res, err := s.Locate(t.Context(), req)
		return err == nil && res.GetLocations()[0].GetShard() == "a"
	}, patience, interval)
}
