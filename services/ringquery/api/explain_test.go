package api

import (
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/services/ringquery/query/explain"
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
		_, _, err := explainQuestion(c.req)
		require.Equal(t, c.want, fields(t, err), name)
	}
}

// TestExplanationsHaveNoUnknownEnums sees to it that every value of the enums but "unspecified" is used for something.
func TestExplanationsHaveNoUnknownEnums(t *testing.T) {
	require.Len(t, severities, len(pb.Severity_name)-1)
	require.Len(t, nextSteps, len(pb.NextStep_name)-1)
	require.Len(t, founds, len(pb.Found_name), "what was not read counts as forbidden")
	require.NotContains(t, nextSteps, explain.Step(""))
}
