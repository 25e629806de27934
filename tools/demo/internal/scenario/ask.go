package scenario

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/ptr"

	diagnosticsv1alpha1 "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/demo/internal/localsystem"
	"github.com/clusterring/clusterring/tools/demo/internal/observe"
	"github.com/clusterring/clusterring/tools/lab/process"
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
			`{"object":{"group":%q,"kind":%q,"namespace":%q,"name":"site-0"}}`, websiteGVK.Group, websiteGVK.Kind, namespaceOf(0))},
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
func (s *Story) ask(ctx context.Context) error {
	var answers []string

	for _, q := range Queries() {
		answer, err := s.grpcurl(ctx, q)
		if err != nil {
			return err
		}

		answers = append(answers, answer)
	}

	if !strings.Contains(answers[0], queryService) || !strings.Contains(answers[0], "grpc.health.v1.Health") {
		return fmt.Errorf("the services %s and grpc.health.v1.Health are not all in the list", queryService)
	}

	var (
		rings struct{ Rings []struct{ Name string } }
		ring  struct {
			Shards []struct {
				Name, State string
				Available   bool
				Share       float64
			}
		}
		located struct {
			Locations []struct{ Ring, Shard string }
		}
	)
	for i, target := range []any{&rings, &ring, &located} {
		if err := json.Unmarshal([]byte(answers[i+1]), target); err != nil {
			return fmt.Errorf("decode what grpcurl printed: %w", err)
		}
	}

	if len(rings.Rings) != 1 || rings.Rings[0].Name != localsystem.Ring {
		return fmt.Errorf("ListRings does not return exactly the ring %s", localsystem.Ring)
	}

	share, available := 0.0, 0

	for _, shard := range ring.Shards {
		if shard.Available != s.isAvailable(shard.Name) {
			return fmt.Errorf("GetRing reports for %s available=%t", shard.Name, shard.Available)
		}

		if shard.Available {
			share, available = share+shard.Share, available+1
		}
	}

	if available != len(s.available()) || share < 0.999 || share > 1.001 {
		return fmt.Errorf("GetRing returns %d available shards with a share of %.3f, not %d with 1", available, share, len(s.available()))
	}
	s.ok("grpcurl: list, ListRings, GetRing: %d shards share the hash space", available)

	if len(located.Locations) != 1 || located.Locations[0].Ring != localsystem.Ring {
		return errors.New("Locate does not return exactly one location") //nolint:staticcheck // the name of the method
	}

	return s.locateAll(ctx, located.Locations[0].Shard)
}

// grpcurl runs grpcurl and shows the command and its output.
func (s *Story) grpcurl(ctx context.Context, q Query) (string, error) {
	path, args := filepath.Join(s.system.BinDir, "grpcurl"), q.Args(s.system.QueryAddress())
	s.console.Note("$ %s", process.Quote(append([]string{localsystem.Display(path)}, args...)...))

	var stdout, stderr bytes.Buffer

	cmd := exec.CommandContext(ctx, path, args...)

	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("grpcurl failed: %w\n%s", err, stderr.String())
	}
	s.console.Block(excerpt(stdout.String(), q.from, shownLines))

	return stdout.String(), nil
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

// locateAll locates each object, and compares the result with its label. shown is the result for the first object.
func (s *Story) locateAll(ctx context.Context, shown string) error {
	all, err := s.everything()
	if err != nil {
		return err
	}

	if first := all[observe.Key{Resource: websites, Namespace: namespaceOf(0), Name: "site-0"}]; first.Shard != shown {
		return fmt.Errorf("the label of the Website site-0 is %q, but Locate returns %q", first.Shard, shown)
	}

	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(users)

	for key, state := range all {
		group.Go(func() error {
			answer, err := s.query.Locate(ctx, locateRequest(key, state))
			if err != nil {
				return fmt.Errorf("locate %s: %w", key, err)
			}

			if got := answer.GetLocations()[0].GetShard(); got != state.Shard {
				return fmt.Errorf("the label of %s is %q, but Locate returns %q", key, state.Shard, got)
			}

			return nil
		})
	}

	if err := group.Wait(); err != nil {
		return err //nolint:wrapcheck // wrapped above
	}
	s.ok("Locate agrees with the labels of all %d objects", len(all))

	return nil
}

func locateRequest(key observe.Key, state observe.State) *diagnosticsv1alpha1.LocateRequest {
	request := &diagnosticsv1alpha1.LocateRequest{
		Object: &diagnosticsv1alpha1.ObjectReference{
			Type:      &diagnosticsv1alpha1.ObjectReference_Resource{Resource: key.Resource},
			Namespace: key.Namespace, Name: key.Name,
		},
		NextShards: ptr.To[int32](0),
	}
	if key.Resource == websites {
		request.Object.Group = websiteGVK.Group
		return request
	}

	request.Owner = &diagnosticsv1alpha1.OwnerReference{
		Group: websiteGVK.Group, Type: &diagnosticsv1alpha1.OwnerReference_Kind{Kind: websiteGVK.Kind}, Name: state.Owner,
	}

	return request
}
