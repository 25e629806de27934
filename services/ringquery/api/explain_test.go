package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
)

func TestExplainRequests(t *testing.T) {
	for name, c := range map[string]struct {
		req  *pb.ExplainRequest
		want []string
	}{
		"fine":          {&pb.ExplainRequest{Object: configMap(nil)}, nil},
		"fine, in ring": {&pb.ExplainRequest{Object: configMap(nil), Ring: "example"}, nil},
		"nothing":       {&pb.ExplainRequest{}, []string{"object"}},
		"all at once": {&pb.ExplainRequest{Object: &pb.ObjectReference{Group: "?", Namespace: "?"}, Ring: "No Ring"}, []string{
			"ring", "object.group", "object", "object.namespace", "object.name",
		}},
	} {
		_, err := explainQuestion(c.req)
		require.Equal(t, c.want, fields(t, err), name)
	}
}
