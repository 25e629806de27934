package ringquery_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
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
			PartitionKey: &pb.PartitionKey{Kind: "ConfigMap", Namespace: "default", Name: name,
				Type: pb.KeyType_KEY_TYPE_NAME},
			Hash:        uint32(k.Hash()),
			Partition:   int32(table.Partition(k.Hash())),
			Shard:       owner,
			NextShards:  table.Ranking(table.Partition(k.Hash()), 3)[1:],
			Fingerprint: table.Fingerprint(),
		}
		for _, object := range []*pb.ObjectReference{byKind("ConfigMap", "default", name),
			byResource("configmaps", "default", name)} {
			got := s.locate(&pb.LocateRequest{Ring: ring, Object: object})
			require.Truef(t, proto.Equal(want, got), "want %v, got %v", want, got)
		}

		got := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "anything"),
			Owner: ownerByKind("ConfigMap", name)})
		want.Role = pb.Role_ROLE_CONTROLLED
		require.Truef(t, proto.Equal(want, got), "a controlled object is where its owner is: want %v, got %v", want, got)
	}
}

func TestLocateWithoutRingAsksAllOfThem(t *testing.T) {
	s := startServer(t)
	// No other test uses this resource.
	spec := v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Resource: "endpoints"}}}
	one, _ := s.makeRing(spec)
	two, _ := s.makeRing(spec)
	res, err := s.Locate(t.Context(), &pb.LocateRequest{Object: byKind("Endpoints", "default", "x")})
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
		Resource: "persistentvolumes", ControlledResources: []v1alpha1.ControlledResource{{Resource: "configmaps"}},
	}}})
	s.makeShards(ring, ns, "a", "b")

	main := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("PersistentVolume", "", "pv")})
	child := s.locate(&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "default", "x"),
		Owner: ownerByKind("PersistentVolume", "pv")})
	require.Equal(t, pb.NamespaceCoverage_NAMESPACE_COVERAGE_COVERED, main.GetNamespaceCoverage())
	require.Equal(t, main.GetPartitionKey().String(), child.GetPartitionKey().String(), "the owner has no namespace")
	require.Equal(t, main.GetShard(), child.GetShard())
}

// TestLocateFailures covers every error, with its code and message.
func TestLocateFailures(t *testing.T) {
	s := startServer(t)
	ring, _ := s.makeRing(configMaps())
	volumes, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{
		{Resource: "services", ControlledResources: []v1alpha1.ControlledResource{{Resource: "persistentvolumes"}}},
	}})
	missing, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.com",
		Resource: "foos"}}})
	deleting := s.makeDeletingRing()

	for name, c := range map[string]struct {
		req   *pb.LocateRequest
		want  string
		field string // that is not valid
	}{
		"not in this ring": {&pb.LocateRequest{Ring: ring, Object: byKind("Pod", "default", "x")},
			"ring " + ring + " does not list Pod; it lists configmaps, secrets (controlled)", ""},
		"in no ring": {&pb.LocateRequest{Object: &pb.ObjectReference{Group: "nobody.example.com",
			Type: &pb.ObjectReference_Kind{Kind: "Nothing"}, Name: "x"}}, "does not list Nothing.nobody.example.com", ""},
		"not served": {&pb.LocateRequest{Ring: missing, Object: &pb.ObjectReference{Group: "example.com",
			Type: &pb.ObjectReference_Resource{Resource: "foos"}, Namespace: "default", Name: "x"}},
			"the API server does not serve it (yet)", ""},
		"ring is being deleted": {&pb.LocateRequest{Ring: deleting, Object: byKind("ConfigMap", "default", "x")},
			"is being deleted", ""},
		"namespace not covered": {&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "kube-system", "x")},
			"does not cover namespace kube-system", ""},
		"no namespace": {&pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", "", "x")},
			"configmaps have a namespace", "object.namespace"},
		"a namespace too many": {&pb.LocateRequest{Ring: volumes, Object: byKind("PersistentVolume", "default", "x")},
			"persistentvolumes are cluster-scoped", "object.namespace"},
		"no owner": {&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "x")}, "name the owner", ""},
		"owner is not in the ring": {&pb.LocateRequest{Ring: ring, Object: byKind("Secret", "default", "x"),
			Owner: ownerByKind("Pod", "y")}, "does not list the owner's Pod as a main resource", ""},
		"owner in a namespace, object in none": {&pb.LocateRequest{Ring: volumes,
			Object: byKind("PersistentVolume", "", "x"), Owner: ownerByKind("Service", "y")}, "must be cluster-scoped", "owner"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Locate(t.Context(), c.req)
			require.ErrorContains(t, err, c.want)
			require.Equal(t, c.field, violated(status.Convert(err)))

			if c.field == "" {
				require.Equal(t, codes.FailedPrecondition, status.Code(err))
			} else {
				require.Equal(t, codes.InvalidArgument, status.Code(err))
			}
		})
	}
}

// violated returns the fields that a status names.
func violated(st *status.Status) string {
	var fields []string

	for _, v := range violations(st) {
		field, _, _ := strings.Cut(v, ": ")
		fields = append(fields, field)
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

// ask sends queries while it reads the answers, and returns all answers.
func (s *server) ask(questions []*pb.LocateAllRequest) []*pb.LocateAllResponse {
	s.t.Helper()

	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()

	stream, err := s.LocateAll(ctx)
	require.NoError(s.t, err)

	go func() {
		for _, q := range questions {
			if !assert.NoError(s.t, stream.Send(q)) {
				return
			}
		}
		assert.NoError(s.t, stream.CloseSend())
	}()

	var answers []*pb.LocateAllResponse

	for {
		res, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return answers
		}
		require.NoError(s.t, err)

		answers = append(answers, res)
	}
}

// TestLocateAllAnswersAsLocateDoes compares the answers and errors of both methods for all kinds of queries.
func TestLocateAllAnswersAsLocateDoes(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b")
	missing, _ := s.makeRing(v1alpha1.ClusterRingSpec{Resources: []v1alpha1.RingResource{{Group: "example.com",
		Resource: "foos"}}})

	questions := []*pb.LocateRequest{
		{Ring: ring, Object: byKind("ConfigMap", "default", "x")},
		{},
		{Ring: "A b", Object: &pb.ObjectReference{Group: "?", Name: "/"}, NextShards: new(int32(11))},
		{Ring: ring, Object: byKind("Secret", "default", "y"), Owner: ownerByKind("ConfigMap", "x")},
		{Ring: "no-such-ring", Object: byKind("ConfigMap", "default", "x")},
		{Ring: ring, Object: byKind("Pod", "default", "x")},
		{Ring: ring, Object: byKind("Secret", "default", "x")},
		{Ring: ring, Object: byKind("ConfigMap", "", "x")},
		{Ring: missing, Object: &pb.ObjectReference{
			Group: "example.com", Type: &pb.ObjectReference_Resource{Resource: "foos"}, Namespace: "default", Name: "x",
		}},
		{Ring: ring, Object: byKind("ConfigMap", "default", "last"), NextShards: new(int32(0))},
	}

	var all []*pb.LocateAllRequest
	for i, q := range questions {
		all = append(all, &pb.LocateAllRequest{Id: fmt.Sprint("question ", i), Question: q})
	}

	answers := s.ask(all)
	require.Len(t, answers, len(questions))

	seen := map[codes.Code]bool{}

	for i, got := range answers {
		want, err := s.Locate(t.Context(), questions[i])
		st := status.Convert(err)
		seen[st.Code()] = true
		require.Equal(t, all[i].GetId(), got.GetId())

		if err == nil {
			require.Truef(t, proto.Equal(want, got.GetAnswer()), "want %v, got %v", want, got)
			continue
		}

		e := got.GetError()
		require.NotNil(t, e)
		require.EqualValues(t, st.Code(), e.GetCode())
		require.Equal(t, st.Message(), e.GetMessage())
		require.Equal(t, reason(err), e.GetReason())
		require.Equal(t, violations(st), e.GetViolations())
	}
	require.Equal(t, map[codes.Code]bool{
		codes.OK: true, codes.InvalidArgument: true, codes.NotFound: true, codes.FailedPrecondition: true,
	}, seen)
}

// violations returns the field violations in a status, in the format of a LocateError.
func violations(st *status.Status) (all []string) {
	for _, d := range st.Details() {
		if bad, ok := d.(*errdetails.BadRequest); ok {
			for _, v := range bad.GetFieldViolations() {
				all = append(all, v.GetField()+": "+v.GetDescription())
			}
		}
	}

	return all
}

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
		res, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", ns, name),
			Labels: labels})
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

// The ring shards the ConfigMaps of one tenant. No answer counts another, unless it still has a label of the ring.
func TestRingOverPartOfAKind(t *testing.T) {
	s := startServer(t)
	s.grant()

	ns := s.plane.Namespace(t)
	spec := configMaps()
	spec.NamespaceSelector = in(ns)
	spec.ObjectSelector = &metav1.LabelSelector{MatchLabels: map[string]string{tenant: "acme"}}
	ring, of := s.makeRing(spec)
	s.makeShards(ring, of, "a", "b")

	s.configMap(ns, "ours", map[string]string{tenant: "acme"})
	s.configMap(ns, "theirs", map[string]string{tenant: "beta"})
	s.configMap(ns, "left", map[string]string{tenant: "beta", contract.ShardLabel(ring): "a"})

	got, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring})
	require.NoError(t, err)
	require.Equal(t, tenant+"=acme", got.GetRing().GetObjectSelector())

	list, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps",
		Namespace: ns})
	require.NoError(t, err)

	states := map[string]pb.AssignmentState{}
	for _, a := range list.GetAssignments() {
		states[a.GetName()] = a.GetState()
	}

	require.Equal(t, map[string]pb.AssignmentState{
		"ours": pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED, "left": pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN,
	}, states)

	sim, err := s.Simulate(t.Context(), &pb.SimulateRequest{Ring: ring, Add: []string{"c"}, CountObjects: true})
	require.NoError(t, err)
	require.EqualValues(t, 1, sim.GetCounted()[0].GetObjects())

	ask := func(name string, labels map[string]string) error {
		_, err := s.Locate(t.Context(), &pb.LocateRequest{Ring: ring, Object: byKind("ConfigMap", ns, name), Labels: labels})
		return err
	}

	require.NoError(t, ask("ours", nil))
	require.NoError(t, ask("not-there", map[string]string{tenant: "acme"}))
	require.ErrorContains(t, ask("theirs", nil), "is not selected by spec.objectSelector")
	require.ErrorContains(t, ask("not-there", map[string]string{tenant: "beta"}), "is not selected by spec.objectSelector")
	require.Equal(t, codes.FailedPrecondition, status.Code(ask("not-there", nil)))
}
