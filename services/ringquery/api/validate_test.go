package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/rings"
)

// fields returns the fields that an error names.
func fields(t *testing.T, err error) (names []string) {
	t.Helper()

	if err == nil {
		return nil
	}

	var invalid *rings.InvalidError
	require.ErrorAs(t, err, &invalid)

	for _, v := range invalid.Violations {
		require.NotEmpty(t, v.Description)
		names = append(names, v.Field)
	}

	return names
}

// configMap returns a valid reference, modified by change.
func configMap(change func(*pb.ObjectReference)) *pb.ObjectReference {
	o := &pb.ObjectReference{Type: &pb.ObjectReference_Resource{Resource: "configmaps"}, Namespace: "default", Name: "a"}
	if change != nil {
		change(o)
	}

	return o
}

func TestLocateRequests(t *testing.T) {
	long := strings.Repeat("x", 254)

	for name, c := range map[string]struct {
		req  *pb.LocateRequest
		want []string
	}{
		"fine": {&pb.LocateRequest{Ring: "example", Object: configMap(nil), NextShards: proto.Int32(0)}, nil},
		"fine, all there is": {&pb.LocateRequest{
			Ring: "a.b",
			Object: &pb.ObjectReference{
				Group: "apps", Type: &pb.ObjectReference_Kind{Kind: "Deployment"}, Namespace: "default", Name: "system:Web.1",
			},
			Owner:      &pb.OwnerReference{Type: &pb.OwnerReference_Kind{Kind: "Pod"}, Name: "x"},
			NextShards: proto.Int32(10),
		}, nil},
		"nothing":        {&pb.LocateRequest{}, []string{"object"}},
		"empty object":   {&pb.LocateRequest{Object: &pb.ObjectReference{}}, []string{"object", "object.name"}},
		"empty owner":    {&pb.LocateRequest{Object: configMap(nil), Owner: &pb.OwnerReference{}}, []string{"owner", "owner.name"}},
		"ring":           {&pb.LocateRequest{Ring: "No Ring", Object: configMap(nil)}, []string{"ring"}},
		"long ring":      {&pb.LocateRequest{Ring: long[:64], Object: configMap(nil)}, []string{"ring"}},
		"many next":      {&pb.LocateRequest{Object: configMap(nil), NextShards: proto.Int32(11)}, []string{"next_shards"}},
		"negative next":  {&pb.LocateRequest{Object: configMap(nil), NextShards: proto.Int32(-1)}, []string{"next_shards"}},
		"group":          {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Group = "apps/v1" })}, []string{"object.group"}},
		"namespace":      {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Namespace = "a/b" })}, []string{"object.namespace"}},
		"long namespace": {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Namespace = long })}, []string{"object.namespace"}},
		"name":           {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Name = "a/b" })}, []string{"object.name"}},
		"dots":           {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Name = ".." })}, []string{"object.name"}},
		"long name":      {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) { o.Name = long })}, []string{"object.name"}},
		"resource": {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) {
			o.Type = &pb.ObjectReference_Resource{Resource: "ConfigMaps"}
		})}, []string{"object.resource"}},
		"kind": {&pb.LocateRequest{Object: configMap(func(o *pb.ObjectReference) {
			o.Type = &pb.ObjectReference_Kind{Kind: "Config Map"}
		})}, []string{"object.kind"}},
		"all at once": {&pb.LocateRequest{
			Ring: "?", Object: &pb.ObjectReference{Group: "?", Namespace: "?"}, Owner: &pb.OwnerReference{Group: "?", Name: "/"},
		}, []string{"ring", "object.group", "object", "object.namespace", "object.name", "owner.group", "owner", "owner.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := questionOf(c.req)
			require.Equal(t, c.want, fields(t, err))
		})
	}
}

func TestNextShardsHasADefault(t *testing.T) {
	q, err := questionOf(&pb.LocateRequest{Object: configMap(nil)})
	require.NoError(t, err)
	require.Equal(t, 2, q.next)
}

func TestPages(t *testing.T) {
	for name, c := range map[string]struct {
		req   *pb.ListRingsRequest
		after string
		limit int
		want  []string
	}{
		"default":       {&pb.ListRingsRequest{}, "", 50, nil},
		"next":          {&pb.ListRingsRequest{PageSize: 7, PageToken: pageToken("some.ring")}, "some.ring", 7, nil},
		"large":         {&pb.ListRingsRequest{PageSize: 1 << 30}, "", 500, nil},
		"negative":      {&pb.ListRingsRequest{PageSize: -1}, "", 0, []string{"page_size"}},
		"not base64":    {&pb.ListRingsRequest{PageToken: "?"}, "", 0, []string{"page_token"}},
		"not ours":      {&pb.ListRingsRequest{PageToken: "c29tZS5yaW5n"}, "", 0, []string{"page_token"}},
		"not a ring":    {&pb.ListRingsRequest{PageToken: pageToken("a b")}, "", 0, []string{"page_token"}},
		"both mistaken": {&pb.ListRingsRequest{PageSize: -1, PageToken: "?"}, "", 0, []string{"page_size", "page_token"}},
	} {
		t.Run(name, func(t *testing.T) {
			after, limit, err := page(c.req)
			require.Equal(t, c.want, fields(t, err))

			if err == nil {
				require.Equal(t, c.after, after)
				require.Equal(t, c.limit, limit)
			}
		})
	}
}

func TestRingNames(t *testing.T) {
	for name, want := range map[string][]string{
		"example":               nil,
		"a.b-c":                 nil,
		"":                      {"name"},
		"Example":               {"name"},
		strings.Repeat("x", 63): nil,
		strings.Repeat("x", 64): {"name"},
	} {
		_, err := ringName(&pb.GetRingRequest{Name: name})
		require.Equal(t, want, fields(t, err), name)
	}
}

func TestQuestionsOfMany(t *testing.T) {
	for name, c := range map[string]struct {
		req  *pb.LocateAllRequest
		want []string
	}{
		"fine":        {&pb.LocateAllRequest{Id: strings.Repeat("x", 256), Question: &pb.LocateRequest{}}, nil},
		"long id":     {&pb.LocateAllRequest{Id: strings.Repeat("x", 257), Question: &pb.LocateRequest{}}, []string{"id"}},
		"bytes count": {&pb.LocateAllRequest{Id: strings.Repeat("ä", 129), Question: &pb.LocateRequest{}}, []string{"id"}},
		"nothing":     {&pb.LocateAllRequest{}, []string{"question"}},
	} {
		require.Equal(t, c.want, fields(t, bulk(c.req)), name)
	}
}

// assignments returns a valid request, modified by change.
func assignments(change func(*pb.ListAssignmentsRequest)) *pb.ListAssignmentsRequest {
	req := &pb.ListAssignmentsRequest{Ring: "example", Resource: "configmaps"}
	if change != nil {
		change(req)
	}

	return req
}

func TestAssignmentsRequests(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*pb.ListAssignmentsRequest)
		want   []string
	}{
		"fine": {nil, nil},
		"fine, all there is": {func(r *pb.ListAssignmentsRequest) {
			r.Group, r.Namespace, r.Shard, r.PageSize = "apps", "default", "Shard_1.x", 5000
			r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN}
		}, nil},
		"no ring":      {func(r *pb.ListAssignmentsRequest) { r.Ring = "" }, []string{"ring"}},
		"ring":         {func(r *pb.ListAssignmentsRequest) { r.Ring = "A b" }, []string{"ring"}},
		"group":        {func(r *pb.ListAssignmentsRequest) { r.Group = "apps/v1" }, []string{"group"}},
		"no resource":  {func(r *pb.ListAssignmentsRequest) { r.Resource = "" }, []string{"resource"}},
		"resource":     {func(r *pb.ListAssignmentsRequest) { r.Resource = "ConfigMap" }, []string{"resource"}},
		"namespace":    {func(r *pb.ListAssignmentsRequest) { r.Namespace = "a.b" }, []string{"namespace"}},
		"shard":        {func(r *pb.ListAssignmentsRequest) { r.Shard = "a,b" }, []string{"shard"}},
		"long shard":   {func(r *pb.ListAssignmentsRequest) { r.Shard = strings.Repeat("x", 64) }, []string{"shard"}},
		"state":        {func(r *pb.ListAssignmentsRequest) { r.States = []pb.AssignmentState{99} }, []string{"states"}},
		"page size":    {func(r *pb.ListAssignmentsRequest) { r.PageSize = -1 }, []string{"page_size"}},
		"no token":     {func(r *pb.ListAssignmentsRequest) { r.PageToken = "?" }, []string{"page_token"}},
		"not ours":     {func(r *pb.ListAssignmentsRequest) { r.PageToken = "c29tZS5yaW5n" }, []string{"page_token"}},
		"half a token": {func(r *pb.ListAssignmentsRequest) { r.PageToken = assignmentsToken(r, "") }, []string{"page_token"}},
		"all at once": {func(r *pb.ListAssignmentsRequest) {
			r.Ring, r.Group, r.Resource, r.Namespace, r.Shard, r.PageSize, r.PageToken = "", "?", "", "?", "?", -1, "?"
		}, []string{"ring", "group", "resource", "namespace", "shard", "page_size", "page_token"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := assignmentsQuery(assignments(c.change))
			require.Equal(t, c.want, fields(t, err))
		})
	}
}

func TestAssignmentsQueries(t *testing.T) {
	q, err := assignmentsQuery(assignments(nil))
	require.NoError(t, err)
	require.Equal(t, "example", q.GetRing())
	require.Equal(t, "configmaps", q.GetResource())
	require.EqualValues(t, 500, q.GetPageSize())

	q, err = assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
		r.PageSize = 1 << 30
		r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED}
	}))
	require.NoError(t, err)
	require.EqualValues(t, 5000, q.GetPageSize())
	require.ElementsMatch(t, []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, pb.AssignmentState_ASSIGNMENT_STATE_UNASSIGNED}, q.GetStates())

	q, err = assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
		r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, pb.AssignmentState_ASSIGNMENT_STATE_UNSPECIFIED}
	}))
	require.NoError(t, err)
	require.Empty(t, q.GetStates(), "unspecified stands for every state")
}

// TestPageTokenIsForItsRequest changes each field of a request.
func TestPageTokenIsForItsRequest(t *testing.T) {
	first := assignments(func(r *pb.ListAssignmentsRequest) {
		r.States = []pb.AssignmentState{pb.AssignmentState_ASSIGNMENT_STATE_ASSIGNED}
	})
	token := assignmentsToken(first, "where/to/go/on")

	q, err := assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) { r.States, r.PageToken = first.GetStates(), token }))
	require.NoError(t, err)
	require.Equal(t, "where/to/go/on", q.GetPageToken())

	all := first.ProtoReflect().Descriptor().Fields()
	for name, change := range map[string]func(*pb.ListAssignmentsRequest){
		"ring":      func(r *pb.ListAssignmentsRequest) { r.Ring = "other" },
		"group":     func(r *pb.ListAssignmentsRequest) { r.Group = "apps" },
		"resource":  func(r *pb.ListAssignmentsRequest) { r.Resource = "secrets" },
		"namespace": func(r *pb.ListAssignmentsRequest) { r.Namespace = "default" },
		"shard":     func(r *pb.ListAssignmentsRequest) { r.Shard = "a" },
		"states":    func(r *pb.ListAssignmentsRequest) { r.States = nil },
		"page_size": func(r *pb.ListAssignmentsRequest) { r.PageSize = 1 },
	} {
		require.NotNil(t, all.ByName(protoreflect.Name(name)))

		_, err := assignmentsQuery(assignments(func(r *pb.ListAssignmentsRequest) {
			r.States, r.PageToken = first.GetStates(), token
			change(r)
		}))
		require.Equal(t, []string{"page_token"}, fields(t, err), name)
		require.ErrorContains(t, err, "another request")
	}
	require.Equal(t, 8, all.Len(), "a new field belongs into this test")
}

func TestSimulateRequests(t *testing.T) {
	many := make([]string, 1001)
	renames := make([]*pb.Rename, 1001)
	long := strings.Repeat("x", 64)

	for name, c := range map[string]struct {
		req  *pb.SimulateRequest
		want []string
	}{
		"fine": {&pb.SimulateRequest{Ring: "example"}, nil},
		"fine, all there is": {&pb.SimulateRequest{
			Ring: "example", Add: []string{"a"}, Remove: []string{"B_1"}, Rename: []*pb.Rename{{From: "c", To: "d"}}, CountObjects: true,
		}, nil},
		"nothing":      {&pb.SimulateRequest{}, []string{"ring"}},
		"ring":         {&pb.SimulateRequest{Ring: "A b"}, []string{"ring"}},
		"too many":     {&pb.SimulateRequest{Ring: "r", Add: many, Remove: many, Rename: renames}, []string{"add", "remove", "rename"}},
		"empty names":  {&pb.SimulateRequest{Ring: "r", Add: []string{""}, Remove: []string{""}}, []string{"add[0]", "remove[0]"}},
		"empty rename": {&pb.SimulateRequest{Ring: "r", Rename: []*pb.Rename{{}}}, []string{"rename[0].from", "rename[0].to"}},
		"no labels": {&pb.SimulateRequest{
			Ring: "r", Add: []string{"a", "b/c"}, Remove: []string{long}, Rename: []*pb.Rename{{From: "a b", To: "-"}},
		}, []string{"add[1]", "remove[0]", "rename[0].from", "rename[0].to"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, fields(t, checkChange(c.req)))
		})
	}
}
