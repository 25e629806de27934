package admission_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/clusterring/clusterring/services/internal/admission"
)

// TestOwnShardLabel: a ring with a label of its own assigns by it, and takes no notice of the default label.
func TestOwnShardLabel(t *testing.T) {
	const label = "cloudapi.team-orca.dev/shard"

	f := state("a").Facts()
	f.ShardLabel = label
	own := admission.NewRing(f)

	for _, tc := range []struct {
		what string
		req  admission.Request
		want admission.Outcome
	}{
		{"new", create(websites, website(nil)), admission.Assigned},
		{"with the default label", create(websites, website(labels(shardLabel, "a"))), admission.Assigned},
		{"with the label", create(websites, website(labels(label, "a"))), admission.Labelled},
		{"with the label, which is dropped", updating(websites, website(labels(label, "a")), website(nil)), admission.Restored},
		{"drained", updating(websites, website(labels(label, "a", label+"-drain", "true")), website(nil)), admission.Handover},
		{"drained by the default label", updating(websites, website(labels(label, "a", drainLabel, "true")), website(nil)), admission.Restored},
	} {
		t.Run(tc.what, func(t *testing.T) {
			answer := admission.Decide(t.Context(), own, &tc.req, nil)
			require.Equal(t, tc.want, answer.Outcome)

			if answer.Shard == "" {
				return
			}

			patch, err := own.Patch(answer, tc.req.Object)
			require.NoError(t, err)
			require.Contains(t, strings.ReplaceAll(string(patch), "~1", "/"), label) // as in a JSON pointer
			require.NotContains(t, string(patch), "timebertt")
		})
	}
}
