package suite_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/clusterring/clusterring/tools/e2e/cluster"
	"github.com/clusterring/clusterring/tools/e2e/podlog"
	"github.com/clusterring/clusterring/tools/e2e/report"
	"github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/example/history"
)

// stirring is the time between two changes of Websites.
const stirring = 50 * time.Millisecond

func (s *suite) scaleShards(t *testing.T) {
	s.withShards(t, "scale", func(ring cluster.Ring) []event {
		return []event{
			{"3 to 5 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 5) }, 5},
			{"5 to 2 shards", func(ctx context.Context) error { return s.Scale(ctx, ring.Shards, 2) }, 2},
		}
	})
}

func (s *suite) deletePod(t *testing.T) {
	s.withShards(t, "delete", func(ring cluster.Ring) []event {
		return []event{{"a pod deleted", func(ctx context.Context) error { return s.removePod(ctx, ring) }, 3}}
	})
}

func (s *suite) killPod(t *testing.T) {
	s.withShards(t, "kill", func(ring cluster.Ring) []event {
		return []event{{"a pod deleted without grace", func(ctx context.Context) error {
			return s.removePod(ctx, ring, client.GracePeriodSeconds(0))
		}, 3}}
	})
}

func (s *suite) restartShards(t *testing.T) {
	s.withShards(t, "restart", func(ring cluster.Ring) []event {
		return []event{{"a rolling restart", func(ctx context.Context) error { return s.Restart(ctx, ring.Shards) }, 3}}
	})
}

// removePod deletes one of the ring's pods.
func (s *suite) removePod(ctx context.Context, ring cluster.Ring, options ...client.DeleteOption) error {
	pods, err := s.Pods(ctx, ring.Shards)
	if err != nil {
		return err
	}
	if len(pods) == 0 {
		return fmt.Errorf("ring %s has no pods", ring.Name)
	}
	return s.Client.Delete(ctx, &pods[0], options...)
}

// withShards makes a ring with three shards and Websites that change all the time, has the events happen one after the other, and
// demands that the ownership is complete after each and that no two shards ever worked on one Website or its ConfigMap at once.
func (s *suite) withShards(t *testing.T, name string, events func(cluster.Ring) []event) {
	t.Helper()
	t.Parallel()
	followed, stop := context.WithCancel(t.Context())
	defer stop()
	collector := podlog.Follow(followed, s.Clients, "e2e-"+name, s.Clock)
	ring := s.ring(t, name, 3)
	require.NoError(t, s.AddWebsites(t.Context(), ring, "site", s.size.websites))
	s.complete(t, ring, 3)

	changes := s.stir(t, ring)
	for _, e := range events(ring) {
		s.after(t, ring, e)
	}
	s.note(t, "changes meanwhile", changes())

	spans, err := collector.Spans()
	require.NoError(t, err)
	stop()
	collector.Wait()
	require.GreaterOrEqual(t, len(spans), 2*s.size.websites, "the history has what the shards have done")
	overlaps := history.Overlaps(spans, func(span history.Span) string { return span.Namespace + "/" + span.Name })
	s.note(t, "reconciles", len(spans))
	s.demand(t, report.Figure{Name: "two shards at once", Value: len(overlaps), Limit: "never", Kept: len(overlaps) == 0})
	assert.Empty(t, overlaps)
}

// stir changes the ring's Websites, one after the other, so that there is work while they move. What it returns stops that, checks
// that no write failed, and says how many there were.
func (s *suite) stir(t *testing.T, ring cluster.Ring) (stop func() int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	var changes int
	var failed []string
	group.Go(func() {
		ticker := s.Clock.NewTicker(stirring)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C():
			}
			site := &v1alpha1.Website{}
			site.Namespace, site.Name = ring.Namespace(), fmt.Sprintf("site-%d", changes%s.size.websites)
			patch := fmt.Appendf(nil, `{"spec":{"body":"%d"}}`, changes)
			if err := s.Client.Patch(ctx, site, client.RawPatch("application/merge-patch+json", patch)); err != nil && ctx.Err() == nil {
				failed = append(failed, err.Error())
			}
			changes++
		}
	})
	t.Cleanup(cancel)
	return func() int {
		cancel()
		group.Wait()
		assert.Empty(t, failed, "changes that failed")
		return changes
	}
}

// ask has the kubectl plugin ask a ringquery pod, through the API server, who owns what.
func (s *suite) ask(t *testing.T) {
	t.Parallel()
	ring := s.ring(t, "ask", 2)
	require.NoError(t, s.AddWebsites(t.Context(), ring, "site", 10))
	s.complete(t, ring, 2)
	objects, err := s.Objects(t.Context(), ring)
	require.NoError(t, err)

	asked := 0
	for _, o := range objects {
		if o.Kind != "Website" {
			continue
		}
		out, err := cluster.Command(t.Context(), s.program("kubectl-ring"), "locate", "websites/"+o.Name, "-n", ring.Namespace(), "--ring", ring.Name, "-o", "json")
		require.NoError(t, err)
		var answer struct {
			Locations []struct{ Ring, Shard string }
		}
		require.NoError(t, json.Unmarshal([]byte(out), &answer), out)
		require.Len(t, answer.Locations, 1, out)
		assert.Equal(t, ring.Name, answer.Locations[0].Ring)
		assert.Equal(t, o.Shard, answer.Locations[0].Shard, "of Website %s", o.Name)
		asked++
	}
	s.demand(t, report.Figure{Name: "owners that the plugin names", Value: asked, Limit: "10, as labelled", Kept: asked == 10 && !t.Failed()})

	why, err := cluster.Command(t.Context(), s.program("kubectl-ring"), "explain", "websites/site-0", "-n", ring.Namespace(), "--ring", ring.Name)
	require.NoError(t, err)
	s.demand(t, report.Figure{
		Name: "the explanation names the shard", Value: strings.Contains(why, objects[0].Shard), Limit: "true", Kept: strings.Contains(why, objects[0].Shard),
	})
	var pods corev1.PodList
	require.NoError(t, s.Client.List(t.Context(), &pods, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": "ringquery"}))
	require.NotEmpty(t, pods.Items)
}
