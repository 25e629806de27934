package ringquery_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/pkg/apis/sharding/contract"
	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/internal/hashring"
	"github.com/clusterring/clusterring/services/internal/key"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

// grant grants the service access to the resources of the rings in these tests.
func (s *server) grant() {
	s.t.Helper()
	require.NoError(s.t, s.plane.Install(s.t.Context(), "services/ringquery/testdata/rights.yaml"))

	// The API server takes a moment to apply them.
	ring := &v1alpha1.ClusterRing{ObjectMeta: metav1.ObjectMeta{Name: "ring-of-probes"}, Spec: configMaps()}
	require.NoError(s.t, client.IgnoreAlreadyExists(s.plane.Client.Create(s.t.Context(), ring)))
	require.Eventually(s.t, func() bool {
		_, err := s.ListAssignments(s.t.Context(), &pb.ListAssignmentsRequest{Ring: ring.Name, Resource: "secrets",
			PageSize: 1})

		return err == nil
	}, patience, interval)
}

// list returns all assignments of a request, page by page.
func (s *server) list(req *pb.ListAssignmentsRequest) (all []*pb.Assignment) {
	s.t.Helper()

	for {
		res, err := s.ListAssignments(s.t.Context(), req)
		require.NoError(s.t, err)

		all = append(all, res.GetAssignments()...)
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return all
		}
	}
}

// configMap creates a ConfigMap with labels.
func (s *server) configMap(namespace, name string, labels map[string]string) *corev1.ConfigMap {
	s.t.Helper()

	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels}}
	require.NoError(s.t, s.plane.Client.Create(s.t.Context(), object))

	return object
}

// namesAt returns n names of ConfigMaps that belong to a shard.
func namesAt(ring *hashring.Table, namespace, shard string, n int) (names []string) {
	for i := 0; len(names) < n; i++ {
		name := fmt.Sprint("object-", i)
		if owner, _ := ring.Owner(key.Key{Kind: "ConfigMap", Namespace: namespace, Name: name}.Hash()); owner == shard {
			names = append(names, name)
		}
	}

	return names
}

// TestListAssignmentsHasEveryState covers the states of main objects.
func TestListAssignmentsHasEveryState(t *testing.T) {
	s := startServer(t)
	s.grant()
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b")

	table := hashring.New([]string{"a", "b"})
	shard, drain := contract.ShardLabel(ring), contract.DrainLabel(ring)
	names := namesAt(table, ns, "a", 6)
	slices.Sort(names)

	var want []*pb.Assignment

	for i, c := range []struct {
		labels map[string]string
		state  pb.AssignmentState
	}{
		{map[string]string{shard: "a"}, pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED},
		{map[string]string{shard: "b"}, pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED},
		{map[string]string{shard: "b", drain: "true"}, pb.AssignmentState_ASSIGNMENT_STATE_DRAINING},
		{map[string]string{shard: "gone", drain: "true"}, pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD},
		{nil, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED},
		{map[string]string{drain: "true"}, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED},
	} {
		s.configMap(ns, names[i], c.labels)
		want = append(want, &pb.Assignment{Namespace: ns, Name: names[i], Shard: c.labels[shard], DesiredShard: "a",
			State: c.state})
	}

	elsewhere := s.plane.Namespace(t)
	s.configMap(elsewhere, names[0], nil)

	res, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps",
		Namespace: ns})
	require.NoError(t, err)
	require.Equal(t, table.Fingerprint(), res.GetFingerprint())
	require.Len(t, res.GetAssignments(), len(want))

	for i, got := range res.GetAssignments() {
		got.DrainTime = nil
		require.Equal(t, want[i].String(), got.String())
	}

	found := s.list(&pb.ListAssignmentsRequest{
		Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 2,
		States: []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED},
	})
	require.Len(t, found, 2)
	require.True(t, slices.ContainsFunc(s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps"}),
		func(a *pb.Assignment) bool { return a.GetNamespace() == elsewhere }))
	at := s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Shard: "b"})
	require.Len(t, at, 2, "in whatever namespace")
}

// TestAssignmentsOfControlledObjects verifies that objects follow their owners, and that the ring ignores objects
// without an owner.
func TestAssignmentsOfControlledObjects(t *testing.T) {
	s := startServer(t)
	s.grant()
	ring, ns := s.makeRing(configMaps())
	s.makeShards(ring, ns, "a", "b")

	table := hashring.New([]string{"a", "b"})
	shard := contract.ShardLabel(ring)
	owner := s.configMap(ns, namesAt(table, ns, "b", 1)[0], nil)
	secret := func(name, at string, refs ...metav1.OwnerReference) {
		object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: refs}}
		if at != "" {
			object.Labels = map[string]string{shard: at}
		}
		require.NoError(t, s.plane.Client.Create(t.Context(), object))
	}
	controller := *metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))
	plain := controller
	plain.Controller = nil
	secret("child", "a", controller)
	secret("foreign", "a", plain)
	secret("none-of-it", "", plain)
	secret("nobodys", "")

	found := s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "secrets", Namespace: ns})
	require.Len(t, found, 2)
	require.Equal(t, "child", found[0].GetName())
	require.Equal(t, "b", found[0].GetDesiredShard())
	require.Equal(t, "ConfigMap/"+owner.Name, found[0].GetOwner())
	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED, found[0].GetState())
	require.Equal(t, "foreign", found[1].GetName())
	require.Empty(t, found[1].GetDesiredShard())
	require.Empty(t, found[1].GetOwner())
	require.Equal(t, pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN, found[1].GetState())
}

func TestAssignmentsFollowTheLabelsOfNamespaces(t *testing.T) {
	s := startServer(t)
	s.grant()

	spec := configMaps()
	team := "team-" + s.plane.Namespace(t)
	spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": team}}
	ring, _ := s.makeRing(spec)
	ours, theirs := s.plane.Namespace(t), s.plane.Namespace(t)
	s.team(ours, team)

	for _, ns := range []string{ours, theirs} {
		s.configMap(ns, "x", map[string]string{contract.ShardLabel(ring): "gone"})
	}

	list := func() map[string]pb.AssignmentState {
		got := map[string]pb.AssignmentState{}
		for _, a := range s.list(&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Shard: "gone"}) {
			got[a.GetNamespace()] = a.GetState()
		}

		return got
	}
	want := map[string]pb.AssignmentState{
		ours:   pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD,
		theirs: pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN,
	}
	require.Equal(t, want, list())
	s.team(theirs, team) // live: the next answer knows

	want[theirs] = pb.AssignmentState_ASSIGNMENT_STATE_DEAD_SHARD
	require.Equal(t, want, list())
}

// team labels a namespace.
func (s *server) team(namespace, team string) {
	s.t.Helper()

	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	patch := []byte(`{"metadata":{"labels":{"team":"` + team + `"}}}`)
	require.NoError(s.t, s.plane.Client.Patch(s.t.Context(), object, client.RawPatch(types.MergePatchType, patch)))
}

// TestPagesWhileObjectsChange verifies that an object that exists all the time is listed exactly once.
func TestPagesWhileObjectsChange(t *testing.T) {
	s := startServer(t)
	s.grant()
	ring, ns := s.makeRing(configMaps())

	const objects = 10

	var steady []string

	for i := range objects {
		name := fmt.Sprintf("steady-%02d", i)
		s.configMap(ns, name, nil)
		s.configMap(ns, fmt.Sprintf("steady-%02d-leaves", i), nil)

		steady = append(steady, name)
	}

	req := &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 3}

	var seen []string

	for page := 0; ; page++ {
		res, err := s.ListAssignments(t.Context(), req)
		require.NoError(t, err)
		require.LessOrEqual(t, len(res.GetAssignments()), 3)

		for _, a := range res.GetAssignments() {
			if !strings.Contains(a.GetName(), "leaves") && !strings.Contains(a.GetName(), "joins") {
				seen = append(seen, a.GetName())
			}
		}

		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			require.Zero(t, res.GetRemaining())
			break
		}
		require.Positive(t, res.GetRemaining())
		s.configMap(ns, fmt.Sprintf("steady-%02d-joins", page), nil)

		if page < objects {
			gone := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns,
				Name: fmt.Sprintf("steady-%02d-leaves", objects-1-page)}}
			require.NoError(t, s.plane.Client.Delete(t.Context(), gone))
		}
	}
	require.Equal(t, steady, seen)
}

func TestListAssignmentsFailures(t *testing.T) {
	s := startServer(t)
	s.grant()

	spec := configMaps()
	spec.Resources = append(spec.Resources, v1alpha1.RingResource{Resource: "services"},
		v1alpha1.RingResource{Resource: "persistentvolumes"}, v1alpha1.RingResource{Group: "example.com", Resource: "foos"})

	ring, ns := s.makeRing(spec)
	for i := range 3 {
		s.configMap(ns, fmt.Sprint(i), nil)
	}

	first, err := s.ListAssignments(t.Context(), &pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps",
		Namespace: ns, PageSize: 1})
	require.NoError(t, err)

	// The part of the token for the request is valid, and the part for the API server is not.
	request, _, _ := strings.Cut(first.GetNextPageToken(), "/")
	forged := request + "/forged"

	for name, c := range map[string]struct {
		req    *pb.ListAssignmentsRequest
		code   codes.Code
		reason string
		want   string
		fields string
	}{
		"unknown ring": {&pb.ListAssignmentsRequest{Ring: "no-such-ring", Resource: "configmaps"}, codes.NotFound,
			"RING_NOT_FOUND", "no-such-ring", ""},
		"not in this ring": {
			&pb.ListAssignmentsRequest{Ring: ring, Resource: "pods"}, codes.FailedPrecondition, "NOT_SHARDED",
			"does not list pods; it lists configmaps", "",
		},
		"not served": {
			&pb.ListAssignmentsRequest{Ring: ring, Group: "example.com", Resource: "foos"}, codes.FailedPrecondition,
			"NOT_SHARDED",
			"the API server does not serve it", "",
		},
		"not allowed": {
			&pb.ListAssignmentsRequest{Ring: ring, Resource: "services"}, codes.FailedPrecondition, "NOT_READABLE",
			"this server may not list services: grant it get and list, by a ClusterRole with the label " +
				"sharding.timebertt.dev/aggregate-to-ringquery=true", "",
		},
		"a namespace too many": {
			&pb.ListAssignmentsRequest{Ring: ring, Resource: "persistentvolumes", Namespace: ns}, codes.InvalidArgument,
			"INVALID", "persistentvolumes are cluster-scoped", "namespace",
		},
		"another request's token": {
			&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 2,
				PageToken: first.GetNextPageToken()},
			codes.InvalidArgument, "INVALID", "another request", "page_token",
		},
		"forged token": {
			&pb.ListAssignmentsRequest{Ring: ring, Resource: "configmaps", Namespace: ns, PageSize: 1, PageToken: forged},
			codes.InvalidArgument, "INVALID", "next_page_token", "page_token",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := s.ListAssignments(t.Context(), c.req)
			st := status.Convert(err)
			require.Equal(t, c.code, st.Code(), err)
			require.Equal(t, c.reason, reason(err))
			require.Contains(t, st.Message(), c.want)
			require.Equal(t, c.fields, violated(st))
		})
	}
}

// proxy is between the service and the API server. It returns errors that a healthy API server does not return on
// demand.
type proxy struct {
	kubeconfig string
	// instead answers a request if it returns true.
	instead atomic.Pointer[func(w http.ResponseWriter, r *http.Request) bool]
}

func startProxy(t *testing.T) *proxy {
	t.Helper()

	config, err := clientcmd.BuildConfigFromFlags("", localplane.Shared(t).ServiceKubeconfig(t, "ringquery"))
	require.NoError(t, err)
	transport, err := rest.TransportFor(config)
	require.NoError(t, err)
	target, err := url.Parse(config.Host)
	require.NoError(t, err)

	target.Path = ""
	p := &proxy{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	forward := httputil.NewSingleHostReverseProxy(target)
	forward.Transport, forward.FlushInterval = transport, -1
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := p.instead.Load(); f == nil || !(*f)(w, r) {
			forward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	require.NoError(t, localplane.WriteKubeconfig(p.kubeconfig, &rest.Config{Host: server.URL}, "",
		contract.SystemNamespace))

	return p
}

// answer lets the proxy answer all requests for ConfigMaps with a status.
func (p *proxy) answer(code int, body string) {
	f := func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/configmaps") {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))

		return true
	}
	p.instead.Store(&f)
}

const expired = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410,"message":"too old"}`

// in selects namespaces by their names.
func in(namespaces ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: corev1.LabelMetadataName, Operator: metav1.LabelSelectorOpIn, Values: namespaces},
	}}
}

// TestSimulateCountsRealObjects counts more than one page of objects in the namespaces that the ring covers.
func TestSimulateCountsRealObjects(t *testing.T) {
	s := startServer(t)
	s.grant()
	covered, other := s.plane.Namespace(t), s.plane.Namespace(t)
	spec := configMaps()
	spec.NamespaceSelector = in(covered)
	spec.Resources = append(spec.Resources, v1alpha1.RingResource{Resource: "services"},
		v1alpha1.RingResource{Group: "example.com", Resource: "foos"})
	ring, ns := s.makeRing(spec)
	s.makeShards(ring, ns, "a", "b")

	before, after := hashring.New([]string{"a", "b"}), hashring.New([]string{"a", "b", "c"})

	const objects = 520

	was, is, moved := map[string]int64{}, map[string]int64{}, int64(0)

	var makers errgroup.Group

	makers.SetLimit(8)

	for i := range objects {
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: covered, Name: fmt.Sprint("object-", i)}}
		k := key.Key{Kind: "ConfigMap", Namespace: object.GetNamespace(), Name: object.GetName()}
		from, _ := before.Owner(k.Hash())
		to, _ := after.Owner(k.Hash())
		was[from]++

		is[to]++
		if from != to {
			moved++
		}

		makers.Go(func() error { return s.plane.Client.Create(t.Context(), object) })
	}

	s.configMap(other, "x", nil)
	require.NoError(t, makers.Wait())

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

// TestCountingGoesOnWhereAListHasExpired continues with the token of the API server.
func TestCountingGoesOnWhereAListHasExpired(t *testing.T) {
	p := startProxy(t)
	s := startServer(t, "--kubeconfig", p.kubeconfig)
	s.grant()
	ring, _ := s.makeRing(configMaps())

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

	res, err := s.Simulate(t.Context(), &pb.SimulateRequest{Ring: ring, Add: []string{"a"}, CountObjects: true})
	require.NoError(t, err)
	require.True(t, asked)
	require.Empty(t, res.GetCounted()[0].GetProblem())
	require.EqualValues(t, 1, res.GetCounted()[0].GetObjects())
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
