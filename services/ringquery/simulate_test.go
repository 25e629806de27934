package ringquery_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
)

// in selects namespaces by their names.
func in(namespaces ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces},
	}}
}

func TestSimulateSaysWhatWouldMove(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b", "c")

	before, after := hashring.New([]string{"a", "b", "c"}), hashring.New([]string{"a", "d", "x"})

	res, err := s.Simulate(t.Context(), &pb.SimulateRequest{
		Ring: ring, Add: []string{"d"}, Remove: []string{"b"}, Rename: []*pb.Rename{{From: "c", To: "x"}},
	})
	require.NoError(t, err)
	require.Equal(t, before.Fingerprint(), res.GetFingerprintBefore())
	require.Equal(t, after.Fingerprint(), res.GetFingerprintAfter())
	require.InDelta(t, 2.0/3, res.GetLeast(), 1e-9)

	moved := 0

	for partition := range hashring.Partitions {
		was, _ := before.OwnerOf(partition)
		if is, _ := after.OwnerOf(partition); is != was {
			moved++
		}
	}
	require.InDelta(t, float64(moved)/hashring.Partitions, res.GetMoved(), 1e-9)
	require.Empty(t, res.GetCounted())

	var names []string
	for _, shard := range res.GetShards() {
		names = append(names, shard.GetName())
		require.EqualValues(t, before.PartitionsOf(shard.GetName()), shard.GetPartitionsBefore())
		require.EqualValues(t, after.PartitionsOf(shard.GetName()), shard.GetPartitionsAfter())
		require.InDelta(t, float64(shard.GetPartitionsBefore())/hashring.Partitions, shard.GetShareBefore(), 1e-9)
		require.InDelta(t, float64(shard.GetPartitionsAfter())/hashring.Partitions, shard.GetShareAfter(), 1e-9)
	}
	require.Equal(t, []string{"a", "b", "c", "d", "x"}, names)
	require.Equal(t, before.Fingerprint(), s.ring(ring).GetRing().GetFingerprint(), "nothing has changed")
}

// TestSimulateCountsRealObjects counts more than one page of objects in the namespaces that the ring covers.
func TestSimulateCountsRealObjects(t *testing.T) {
	s := startServer(t)
	s.grant()
	covered, other := s.plane.Namespace(t), s.plane.Namespace(t)
	spec := configMaps()
	spec.NamespaceSelector = in(covered)
	spec.Resources = append(spec.Resources, v1alpha1.RingResource{Resource: "services"}, v1alpha1.RingResource{Group: "example.com", Resource: "foos"})
	ring, ns := s.makeRing(spec)
	s.makeShards(ring, ns, "a", "b")

	before, after := hashring.New([]string{"a", "b"}), hashring.New([]string{"a", "b", "c"})

	const objects = 520

	was, is, moved := map[string]int64{}, map[string]int64{}, int64(0)

	var makers sync.WaitGroup

	for i := range objects {
		k := key.Key{Kind: "ConfigMap", Namespace: covered, Name: fmt.Sprint("object-", i)}
		from, _ := before.Owner(k.Hash())
		to, _ := after.Owner(k.Hash())
		was[from]++

		is[to]++
		if from != to {
			moved++
		}
	}

	for maker := range 8 {
		makers.Go(func() {
			for i := maker; i < objects; i += 8 {
				object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: covered, Name: fmt.Sprint("object-", i)}}
				assert.NoError(t, s.plane.Client.Create(t.Context(), object))
			}
		})
	}
	s.configMap(other, "x", nil)
	makers.Wait()

	res, err := s.Simulate(t.Context(), &pb.SimulateRequest{Ring: ring, Add: []string{"c"}, CountObjects: true})
	require.NoError(t, err)

	for _, shard := range res.GetShards() {
		require.Equal(t, was[shard.GetName()], shard.GetObjectsBefore(), shard)
		require.Equal(t, is[shard.GetName()], shard.GetObjectsAfter(), shard)
	}

	counted := res.GetCounted()
	require.Len(t, counted, 3)
	require.Equal(t, "configmaps", counted[0].GetResource())
	require.EqualValues(t, objects, counted[0].GetObjects())
	require.Equal(t, moved, counted[0].GetMoved())
	require.Empty(t, counted[0].GetProblem())
	require.Equal(t, "services", counted[1].GetResource())
	require.Contains(t, counted[1].GetProblem(), "sharding.timebertt.dev/aggregate-to-ringquery=true")
	require.Equal(t, "example.com", counted[2].GetGroup())
	require.Contains(t, counted[2].GetProblem(), "does not serve it")
}

// TestCountingGoesOnWhereAListHasExpired continues with the token of the API server. If this also fails, the answer reports it.
func TestCountingGoesOnWhereAListHasExpired(t *testing.T) {
	p := startProxy(t)
	s := startServer(t, "--kubeconfig", p.kubeconfig)
	s.grant()
	ring, _ := s.makeRing(configMaps())

	req := &pb.SimulateRequest{Ring: ring, Add: []string{"a"}, CountObjects: true}
	asked := false
	once := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/configmaps") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")

		if !asked {
			asked = true
			w.WriteHeader(http.StatusGone)
			_, _ = w.Write([]byte(strings.Replace(expired, `"status":`, `"metadata":{"continue":"here"},"status":`, 1)))
		} else {
			assert.Equal(t, "here", r.URL.Query().Get("continue"))

			_, _ = w.Write([]byte(`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","items":[{"metadata":{"namespace":"default","name":"x"}}]}`))
		}

		return true
	}
	p.instead.Store(&once)

	res, err := s.Simulate(t.Context(), req)
	require.NoError(t, err)
	require.True(t, asked)
	require.Empty(t, res.GetCounted()[0].GetProblem())
	require.EqualValues(t, 1, res.GetCounted()[0].GetObjects())

	p.answer(http.StatusGone, expired)

	res, err = s.Simulate(t.Context(), req)
	require.NoError(t, err)
	require.Contains(t, res.GetCounted()[0].GetProblem(), "not all were counted")
}

// An error would tell clients that their own time is over, and hide what the server knows without the objects.
func TestCountingThatTakesTooLongIsReported(t *testing.T) {
	p := startProxy(t)
	s := startServer(t, "--kubeconfig", p.kubeconfig, "--grpc-call-timeout=1s")
	s.grant()
	ring, _ := s.makeRing(configMaps())
	slow := func(_ http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/configmaps") {
			return false
		}

		<-r.Context().Done()

		return true
	}
	p.instead.Store(&slow)

	sim, err := s.Simulate(t.Context(), &pb.SimulateRequest{Ring: ring, Add: []string{"a"}, CountObjects: true})
	require.NoError(t, err)
	require.Len(t, sim.GetShards(), 1)
	require.Contains(t, sim.GetCounted()[0].GetProblem(), "--grpc-call-timeout")

	res, err := s.GetRing(t.Context(), &pb.GetRingRequest{Name: ring, CountObjects: true})
	require.NoError(t, err)
	require.Equal(t, ring, res.GetRing().GetName())
	require.Contains(t, res.GetCounted()[0].GetProblem(), "--grpc-call-timeout")
}

func TestSimulateFailures(t *testing.T) {
	s := startServer(t)
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b")
	deleting := s.makeDeletingRing()

	for name, c := range map[string]struct {
		req    *pb.SimulateRequest
		code   codes.Code
		reason string
		fields string
	}{
		"nothing":           {&pb.SimulateRequest{}, codes.InvalidArgument, "INVALID", "ring"},
		"unknown ring":      {&pb.SimulateRequest{Ring: "no-such-ring"}, codes.NotFound, "RING_NOT_FOUND", ""},
		"deleted ring":      {&pb.SimulateRequest{Ring: deleting}, codes.FailedPrecondition, "NOT_SHARDED", ""},
		"no label":          {&pb.SimulateRequest{Ring: ring, Add: []string{"a/b"}}, codes.InvalidArgument, "INVALID", "add[0]"},
		"too many":          {&pb.SimulateRequest{Ring: ring, Remove: make([]string, 1001)}, codes.InvalidArgument, "INVALID", "remove"},
		"there already":     {&pb.SimulateRequest{Ring: ring, Add: []string{"a"}}, codes.InvalidArgument, "INVALID", "add[0]"},
		"not there":         {&pb.SimulateRequest{Ring: ring, Remove: []string{"c"}}, codes.InvalidArgument, "INVALID", "remove[0]"},
		"nobody to rename":  {&pb.SimulateRequest{Ring: ring, Rename: []*pb.Rename{{From: "c", To: "d"}}}, codes.InvalidArgument, "INVALID", "rename[0].from"},
		"renamed and there": {&pb.SimulateRequest{Ring: ring, Rename: []*pb.Rename{{From: "a", To: "b"}}}, codes.InvalidArgument, "INVALID", "rename[0].to"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.Simulate(t.Context(), c.req)
			st := status.Convert(err)
			require.Equal(t, c.code, st.Code(), err)
			require.Equal(t, c.reason, reason(err))
			require.Equal(t, c.fields, violated(st))
		})
	}
}
