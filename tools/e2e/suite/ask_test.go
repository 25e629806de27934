package suite_test

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/controller-runtime/pkg/client"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/report"
)

// asked is how many Websites the plugin is asked about.
const asked = 10

// ask has the kubectl plugin ask a ringquery pod, through the API server, who owns what. It asks as somebody who may do no more
// than that, and about another ring not even that.
func (s *suite) ask(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	ring := s.ring(t, "ask", 2)
	require.NoError(t, s.AddWebsites(ctx, ring, "site", asked))
	s.complete(t, ring, 2)

	plugin := s.plugin(t, ring)
	objects, err := s.Objects(ctx, ring)
	require.NoError(t, err)
	right := 0
	for _, o := range objects {
		if o.Kind != "Website" {
			continue
		}
		out, err := plugin(ctx, "locate", "websites/"+o.Name, "--ring", ring.Name, "-o", "json")
		require.NoError(t, err)
		var answer diagnosticsv1alpha1.LocateResponse
		require.NoError(t, protojson.Unmarshal([]byte(out), &answer), out)
		require.Len(t, answer.GetLocations(), 1, out)
		if assert.Equal(t, o.Shard, answer.GetLocations()[0].GetShard(), "of Website %s", o.Name) {
			right++
		}
	}
	s.demand(t, report.Figure{Name: "owners named by kubectl ring, of 10", Value: right, Limit: "all, as labelled", Kept: right == asked})

	why, err := plugin(ctx, "explain", "websites/site-0", "--ring", ring.Name)
	require.NoError(t, err)
	named := strings.Contains(why, objects[0].Shard)
	s.demand(t, report.Figure{Name: "kubectl ring explains with the shard's name", Value: named, Limit: "true", Kept: named})

	_, err = plugin(ctx, "get", cluster.Example.Name)
	require.ErrorContains(t, err, "PERMISSION_DENIED")
	s.demand(t, report.Figure{Name: "asking about another's ring", Value: "refused", Limit: "refused", Kept: true})
}

// plugin returns a function that runs the kubectl plugin as somebody who may do no more than ask about the ring.
func (s *suite) plugin(t *testing.T, ring cluster.Ring) func(ctx context.Context, args ...string) (string, error) {
	t.Helper()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	outside, err := s.AddAsker(t.Context(), ring, "asker", kubeconfig)
	t.Cleanup(func() {
		for _, o := range outside {
			assert.NoError(t, client.IgnoreNotFound(s.Client.Delete(context.WithoutCancel(t.Context()), o)))
		}
	})
	require.NoError(t, err)
	return func(ctx context.Context, args ...string) (string, error) {
		return cluster.Command(ctx, s.program("kubectl-ring"), append(args, "--kubeconfig", kubeconfig, "-n", ring.Namespace())...)
	}
}

// keepAsking asks about the ring, one question after the other, each over a connection of its own. What it returns stops that, and
// says how many were answered and what went wrong with the others.
func (s *suite) keepAsking(t *testing.T, ring cluster.Ring) (stop func() (answers int, failures []string)) {
	t.Helper()
	plugin := s.plugin(t, ring)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var answers int
	var failures []string
	group.Go(func() {
		for ctx.Err() == nil {
			_, err := plugin(ctx, "get", ring.Name)
			switch {
			case err == nil:
				answers++
			case ctx.Err() == nil:
				failures = append(failures, err.Error())
			}
		}
	})
	t.Cleanup(cancel)
	return func() (int, []string) {
		cancel()
		group.Wait()
		return answers, failures
	}
}
