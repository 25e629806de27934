package scenario

import (
	"context"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	examplev1alpha1 "github.com/clusterring/clusterring/tools/example/api/v1alpha1"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

// ask queries the query service, and compares the responses with the labels.
func (s *Story) ask(ctx context.Context) {
	rings := must.Get(s.query.ListRings(ctx, &diagnosticsv1alpha1.ListRingsRequest{}))
	must.Hold(len(rings.GetRings()) == 1 && rings.GetRings()[0].GetName() == localsystem.Ring,
		"ListRings does not return exactly the ring %s", localsystem.Ring)

	share, available := 0.0, 0

	ring := must.Get(s.query.GetRing(ctx, &diagnosticsv1alpha1.GetRingRequest{Name: localsystem.Ring}))
	for _, shard := range ring.GetShards() {
		must.Hold(shard.GetAvailable() == slices.Contains(s.available(), shard.GetName()),
			"GetRing reports for %s available=%t", shard.GetName(), shard.GetAvailable())

		if shard.GetAvailable() {
			share, available = share+shard.GetShare(), available+1
		}
	}

	must.Hold(available == len(s.running()) && math.Abs(share-1) <= 0.001,
		"GetRing returns %d available shards with a share of %.3f, not %d with 1", available, share, len(s.running()))
	s.ok("ListRings, GetRing: %d shards share the hash space", available)

	located, problems := s.ring.Disagreements(ctx, s.query)
	must.None("Locate disagrees with labels", problems)
	must.Hold(located == len(s.before), "%d of %d objects were located", located, len(s.before))
	s.ok("Locate agrees with the labels of all %d objects", located)
	s.locate(ctx)
}

// locate asks where an object is, as users may ask, and shows the answer.
func (s *Story) locate(ctx context.Context) {
	request := fmt.Sprintf(`{"object":{"group":%q,"kind":"Website","namespace":%q,"name":"site-0"}}`,
		examplev1alpha1.SchemeGroupVersion.Group, namespaceOf(0))
	args := []string{"-plaintext", "-d", request, s.system.Queries,
		"clusterring.diagnostics.v1alpha1.DiagnosticsService/Locate"}

	s.console.Note("$ %s", process.Quote(append([]string{"bin/grpcurl"}, args...)...))
	//nolint:gosec // the arguments are those above
	answer, err := exec.CommandContext(ctx, filepath.Join(s.system.BinDir, "grpcurl"), args...).CombinedOutput()
	s.console.Text("    %s", strings.ReplaceAll(strings.TrimSpace(string(answer)), "\n", "\n    "))
	must.Do(err)
	must.Hold(strings.Contains(string(answer), `"shard": "`), "Locate does not name a shard")
}
