package api

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query"
)

// fields returns the fields that an error complains about.
func fields(t *testing.T, err error) (names []string) {
	t.Helper()

	if err == nil {
		return nil
	}

	var invalid *query.InvalidError
	require.ErrorAs(t, err, &invalid)
	for _, v := range invalid.Violations {
		require.NotEmpty(t, v.Description)
		names = append(names, v.Field)
	}

	return names
}

// configMap returns a reference that nothing is wrong with, but for what change does.
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
			_, err := question(c.req)
			require.Equal(t, c.want, fields(t, err))
		})
	}
}

func TestNextShardsHasADefault(t *testing.T) {
	q, err := question(&pb.LocateRequest{Object: configMap(nil)})
	require.NoError(t, err)
	require.Equal(t, 2, q.Next)
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
