package scenario

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/lab/judge"
	"github.com/clusterring/clusterring/tools/lab/must"
	"github.com/clusterring/clusterring/tools/testkit/check"
	"github.com/clusterring/clusterring/tools/testkit/process"
)

const (
	queryService = "clusterring.diagnostics.v1alpha1.DiagnosticsService"
	shownLines   = 22
)

// Query is a request to the query service that grpcurl sends.
type Query struct {
	// Method is the full name of the method; empty lists the services.
	Method string
	// Request is JSON; empty for none.
	Request string
	// from is part of the first line of the response that is shown; empty for the first line.
	from string
}

// Queries returns the queries of the demo. The last one is about one object.
func Queries() []Query {
	return []Query{
		{},
		{Method: queryService + "/ListRings"},
		{Method: queryService + "/GetRing", Request: fmt.Sprintf(`{"name":%q}`, localsystem.Ring), from: `"shards": [`},
		{Method: queryService + "/Locate", Request: fmt.Sprintf(
			`{"object":{"group":%q,"kind":%q,"namespace":%q,"name":"site-0"}}`, gvk(check.Website).Group, check.Website,
			namespaceOf(0))},
	}
}

// Args returns the arguments of grpcurl.
func (q Query) Args(address string) []string {
	args := []string{"-plaintext"}
	if q.Request != "" {
		args = append(args, "-d", q.Request)
	}

	if q.Method == "" {
		return append(args, address, "list")
	}

	return append(args, address, q.Method)
}

// ask queries the query service, and compares the responses with the labels.
func (s *Story) ask(ctx context.Context) {
	var (
		names   string
		rings   diagnosticsv1alpha1.ListRingsResponse
		ring    diagnosticsv1alpha1.GetRingResponse
		located diagnosticsv1alpha1.LocateResponse
	)

	for i, response := range []proto.Message{nil, &rings, &ring, &located} {
		printed := s.grpcurl(ctx, Queries()[i])
		if response == nil {
			names = printed
		} else {
			must.Do(protojson.Unmarshal([]byte(printed), response))
		}
	}

	must.Hold(strings.Contains(names, queryService) && strings.Contains(names, "grpc.health.v1.Health"),
		"the services %s and grpc.health.v1.Health are not all in the list", queryService)
	must.Hold(len(rings.GetRings()) == 1 && rings.GetRings()[0].GetName() == localsystem.Ring,
		"ListRings does not return exactly the ring %s", localsystem.Ring)

	share, available := 0.0, 0

	for _, shard := range ring.GetShards() {
		must.Hold(shard.GetAvailable() == slices.Contains(s.available(), shard.GetName()),
			"GetRing reports for %s available=%t", shard.GetName(), shard.GetAvailable())

		if shard.GetAvailable() {
			share, available = share+shard.GetShare(), available+1
		}
	}

	must.Hold(available == len(s.running()) && math.Abs(share-1) <= 0.001,
		"GetRing returns %d available shards with a share of %.3f, not %d with 1", available, share, len(s.running()))
	s.ok("grpcurl: list, ListRings, GetRing: %d shards share the hash space", available)

	want, all := s.before.named(check.Website, "site-0").Shard, located.GetLocations()
	must.Hold(len(all) == 1 && all[0].GetRing() == localsystem.Ring && all[0].GetShard() == want,
		"Locate does not return exactly %s for the Website site-0, but %v", want, all)
	s.locateAll(ctx)
}

// grpcurl runs grpcurl and shows the command and its output.
func (s *Story) grpcurl(ctx context.Context, q Query) string {
	path, args := filepath.Join(s.system.BinDir, "grpcurl"), q.Args(s.system.Queries)
	s.console.Note("$ %s", process.Quote(append([]string{localsystem.Display(path)}, args...)...))

	var stdout, stderr bytes.Buffer

	cmd := exec.CommandContext(ctx, path, args...)

	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		must.Do(fmt.Errorf("grpcurl failed: %w\n%s", err, stderr.String()))
	}
	s.console.Block(excerpt(stdout.String(), q.from, shownLines))

	return stdout.String()
}

// excerpt returns some lines of a text, from the line that contains from, and the number of lines that it omits.
func excerpt(text, from string, lines int) string {
	all := strings.Split(strings.TrimRight(text, "\n"), "\n")
	first := max(0, slices.IndexFunc(all, func(line string) bool { return strings.Contains(line, from) }))
	last := min(len(all), first+lines)

	shown := all[first:last:last]
	if first > 0 {
		shown = append([]string{fmt.Sprintf("… %d lines", first)}, shown...)
	}

	if last < len(all) {
		shown = append(shown, fmt.Sprintf("… %d more lines", len(all)-last))
	}

	return strings.Join(shown, "\n")
}

// locateAll locates each object, and compares the result with its label.
func (s *Story) locateAll(ctx context.Context) {
	uids := slices.Collect(maps.Keys(s.before))

	must.Do(atOnce(ctx, len(uids), func(ctx context.Context, i int) error {
		v := s.before[uids[i]]

		answer, err := s.query.Locate(ctx, judge.Locate("", v, s.before[v.Owner]))
		if err != nil {
			return fmt.Errorf("locate %s: %w", name(v), err)
		}

		if got := answer.GetLocations()[0].GetShard(); got != v.Shard {
			return fmt.Errorf("the label of %s is %q, but Locate returns %q", name(v), v.Shard, got)
		}

		return nil
	}))
	s.ok("Locate agrees with the labels of all %d objects", len(uids))
}
