package command_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	soon = 30 * time.Second
	tick = 10 * time.Millisecond
)

// TestColours verifies that colours are used only on a terminal, and only if they are not disabled.
func TestColours(t *testing.T) {
	s := serve(t)
	for name, c := range map[string]struct {
		terminal bool
		env      map[string]string
		want     bool
	}{
		"terminal":           {true, nil, true},
		"file":               {false, nil, false},
		"NO_COLOR":           {true, map[string]string{"NO_COLOR": "1"}, false},
		"NO_COLOR, but none": {true, map[string]string{"NO_COLOR": ""}, true},
		"dumb terminal":      {true, map[string]string{"TERM": "dumb"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, line := range []string{
				"explain configmaps/page", "explain configmaps/page -o wide", "list", "get example", "assignments example websites",
			} {
				p := newProgram(t)
				p.terminal, p.env = c.terminal, c.env
				p.run(t.Context(), s.at(strings.Fields(line)...)...)
				assert.Equal(t, c.want, strings.Contains(p.out.String(), "\x1b["), line)
				assert.NotContains(t, p.out.String(), "\x1b[31mred", "texts of others set no colours")
				assert.Empty(t, p.err.String())
			}
		})
	}

	p := newProgram(t)
	p.terminal = true
	require.Equal(t, command.Problem, p.run(t.Context(), s.at("explain", "configmaps/page")...))
	require.Contains(t, p.out.String(), "\x1b[31m✗\x1b[0m", "what is bad is red")
}

func TestPagesAreStreamed(t *testing.T) {
	s := serve(t)
	p := newProgram(t)
	s.beforePage = func(number int) {
		if number > 0 {
			assert.Contains(t, p.out.String(), "shop", "the first page is out before another is asked for")
		}
		assert.NotContains(t, p.out.String(), "zoo")
	}
	code := p.run(t.Context(), s.at("assignments", "example", "websites", "--chunk-size", "7", "-n", "team", "--shard",
		"shard-1",
		"--state", "draining,misplaced", "--state", "foreign")...)
	require.Equal(t, command.Fine, code, p.err.String())
	require.Contains(t, p.out.String(), "zoo")
	require.Len(t, s.assignments, 3)

	for i, req := range s.assignments {
		want := &pb.ListAssignmentsRequest{
			Ring: "example", Group: "example.clusterring.dev", Resource: "websites", Namespace: "team", Shard: "shard-1",
			States: []pb.AssignmentState{
				pb.AssignmentState_ASSIGNMENT_STATE_DRAINING, pb.AssignmentState_ASSIGNMENT_STATE_MISPLACED,
				pb.AssignmentState_ASSIGNMENT_STATE_FOREIGN,
			},
			PageSize: 7, PageToken: strings.Repeat("x", i),
		}
		require.Truef(t, proto.Equal(want, req), "page %d: want %v, got %v", i, want, req)
	}

	s.beforePage = nil
	require.Equal(t, command.Fine, newProgram(t).run(t.Context(),
		s.at("assignments", "example", "websites", "-n", "team", "-A")...))
	require.Empty(t, s.assignments[3].GetNamespace(), "all namespaces")
}

func TestSimulateNamesShards(t *testing.T) {
	s := serve(t)
	p := newProgram(t)
	code := p.run(t.Context(), s.at("simulate", "example", "--add", "2,new-1", "--add", "1", "--remove", "shard-1")...)
	require.Equal(t, command.Fine, code, p.err.String())

	want := &pb.SimulateRequest{
		Ring: "example", Add: []string{"new-1", "new-2", "new-3", "new-4"}, Remove: []string{"shard-1"},
	}
	require.Truef(t, proto.Equal(want, s.simulated[0]), "%v", s.simulated[0])
}

// The parts of the hash space stand in for the objects if nobody can count these.
func TestSizeWithoutObjects(t *testing.T) {
	s := serve(t)
	s.simulation = &pb.SimulateResponse{
		Shards: []*pb.SimulatedShard{
			{Name: "a", PartitionsAfter: 8192, ShareAfter: 0.5}, {Name: "b", PartitionsAfter: 8192, ShareAfter: 0.5},
		},
		Counted: []*pb.CountedResource{{Resource: "secrets", Problem: "ringquery may not list secrets"}},
	}
	p := newProgram(t)
	code := p.run(t.Context(), s.at("simulate", "example", "--changes-per-second", "6", "--work", "1s", "--workers", "4",
		"-o", "json")...)
	require.Equal(t, command.Fine, code, p.err.String())
	require.Contains(t, p.out.String(), `"fullestBusyPercent": 75,`)
}

func TestCompletion(t *testing.T) {
	s := serve(t)
	for line, want := range map[string]string{
		"get ":                          "example\nleaving\n:4\n",
		"watch ":                        "example\nleaving\n:4\n",
		"get example ":                  ":4\n",
		"simulate example --remove ":    "shard-1\nshard-2\nshard-3\n:4\n",
		"assignments ":                  "example\nleaving\n:4\n",
		"assignments example ":          "configmaps\nwebsites.example.clusterring.dev\n:4\n",
		"assignments example --shard ":  "shard-1\nshard-2\nshard-3\n:4\n",
		"assignments example --state m": "assigned\nmisplaced\ndraining\ndead-shard\nunassigned\nforeign\n:4\n",
		"assignments nobody ": "_activeHelp_ no completion: there is no ring nobody: kubectl ring list names the " +
			"rings\n:4\n",
		"explain ":                     "configmaps/\ndeployments.apps/\nwebsites.example.clusterring.dev/\n:6\n",
		"explain websites/":            ":4\n",
		"locate websites/blog --ring ": "example\nleaving\n:4\n",
		"list -o ":                     "wide\njson\nyaml\nname\n:4\n",
		"explain -o ":                  "wide\njson\nyaml\n:4\n",
		"version ":                     ":4\n",
		"advise --target-p99 ":         ":4\n",
		"advise --token-file ":         ":0\n",
		"get --endpoint 127.0.0.1:1 --plaintext ": "_activeHelp_ no completion: connection error: desc = \"transport: " +
			"Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused\": check that ringquery runs and can be " +
			"reached: kubectl get pods -A -l app.kubernetes.io/name=ringquery\n:4\n",
	} {
		t.Run(line, func(t *testing.T) {
			p := newProgram(t)
			words := strings.Split(line, " ")

			args := []string{"__completeNoDesc"}
			if !strings.Contains(line, "--endpoint") {
				args = append(args, "--plaintext", "--endpoint", s.address)
			}
			require.Equal(t, command.Fine, p.run(t.Context(), append(args, words...)...))
			require.Equal(t, want, p.out.String(), p.err.String())
		})
	}
}

func TestNoServer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)

	address := listener.Addr().String()
	require.NoError(t, listener.Close())

	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), "list", "--endpoint", address, "--plaintext"))
	require.Contains(t, p.err.String(), "connection refused")
	require.Contains(t, p.err.String(), "asked: "+address+" without TLS\n")
	require.Contains(t, p.err.String(), "to do: check that ringquery runs")

	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), "list"))
	require.Contains(t, p.err.String(), "there is no kubeconfig")
	require.Contains(t, p.err.String(), "--endpoint")
}

// TestTLSAndPlaintextMixedUp verifies that the error names the wrong flag.
func TestTLSAndPlaintextMixedUp(t *testing.T) {
	s := serve(t)
	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), "list", "--endpoint", s.address))
	require.Contains(t, p.err.String(), "use --plaintext")
}

func TestRequestTimeout(t *testing.T) {
	s := serve(t)
	s.beforePage = func(int) { <-t.Context().Done() }
	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(),
		s.at("assignments", "example", "websites", "--request-timeout", "200ms")...))
	require.Contains(t, p.err.String(), "longer --request-timeout")
}

// TestTypesAreThoseOfTheCluster resolves types with the real API server. The token of the kubeconfig is not sent to the
// server.
func TestTypesAreThoseOfTheCluster(t *testing.T) {
	plane := localplane.Shared(t)
	s := serve(t)
	kubeconfig := plane.ServiceKubeconfig(t, "ringquery")
	run := func(line string) (*program, int) {
		p := newProgram(t)
		args := append(strings.Fields(line), "--kubeconfig", kubeconfig, "--cache-dir", t.TempDir())
		code := p.run(t.Context(), s.at(args...)...)

		return p, code
	}
	p, code := run("locate cm/x deploy.apps/x ClusterRing/x -n team")
	require.Equal(t, command.Fine, code, p.err.String())
	p, code = run("locate pods/x")
	require.Equal(t, command.Fine, code, p.err.String())

	var got []string

	for _, req := range s.located {
		o := req.GetObject()
		got = append(got, fmt.Sprintf("%s %s %q", o.GetGroup(), o.GetResource(), o.GetNamespace()))
	}
	require.Equal(t, []string{
		` configmaps "team"`, `apps deployments "team"`, `sharding.timebertt.dev clusterrings ""`, ` pods "sharding-system"`,
	}, got, "resources, without a namespace if they have none, else that of the context")

	p, code = run("assignments example cm")
	require.Equal(t, command.Fine, code, p.err.String())
	require.Equal(t, "configmaps", s.assignments[len(s.assignments)-1].GetResource(), "a short name")

	for _, token := range s.tokens {
		require.Empty(t, token, "the user may create no token of ringquery-reader")
	}
}

func TestTokenWithoutKubeconfig(t *testing.T) {
	s := serve(t)
	require.Equal(t, command.Fine, newProgram(t).run(t.Context(), s.at("list", "--token", "mine")...))
	require.Equal(t, []string{"Bearer mine", "Bearer mine"}, s.tokens)
	require.Equal(t, command.Fine, newProgram(t).run(t.Context(), s.at("locate", "websites/x", "--token", "mine")...))
	require.Equal(t, "Bearer mine", s.tokens[2], "what is asked does not need the cluster")
}

// watched returns a message of the server about a ring with two shards. The second may be missing.
func watched(revision int64, fingerprint string, second pb.ShardState) *pb.WatchRingResponse {
	ring := ringExample()
	ring.Fingerprint, ring.AvailableShards, ring.Shards = fingerprint, 2, 2
	all := shards()[:2]

	all[1].State = second
	if second == pb.ShardState_SHARD_STATE_DEAD {
		ring.AvailableShards, all[1].Available, all[1].Share, all[0].Share = 1, false, 0, 1
		all[1].Holder = "shardlease-controller"
	}

	return &pb.WatchRingResponse{Ring: ring, Shards: all, Revision: revision}
}

// TestWatchConnectsAgain: what changed while nobody was connected is told, and nothing twice. It ends with the ring.
func TestWatchConnectsAgain(t *testing.T) {
	const one, two = "1111111111111111", "2222222222222222"

	const ready, expired, dead = pb.ShardState_SHARD_STATE_READY, pb.ShardState_SHARD_STATE_EXPIRED,
		pb.ShardState_SHARD_STATE_DEAD

	s, number := serve(t), 0
	streams := [][]*pb.WatchRingResponse{
		{watched(0, one, ready), watched(1, one, expired)}, {watched(0, two, dead)}, {}, {watched(0, one, ready)},
	}
	s.watch = func(stream pb.DiagnosticsService_WatchRingServer) error {
		if number == len(streams) {
			return refuse(codes.NotFound, "ring example is gone", reason("RING_NOT_FOUND"))
		}

		number++

		for _, message := range streams[number-1] {
			if err := stream.Send(message); err != nil {
				return err
			}
		}

		return refuse(codes.Unavailable, "the server is about to stop", reason("STOPPING"))
	}

	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.runStepping(t.Context(), s.at("watch", "example")...))
	require.Equal(t, []string{
		"2 of 2 shards available, fingerprint " + one, "shard-2 is expired",
		"- shard-2 is no longer available, its Lease is held by shardlease-controller",
		"1 of 2 shards available, fingerprint " + two, "+ shard-2 is available, ready",
		"2 of 2 shards available, fingerprint " + one,
	}, withoutTime(p.out.String()))
	require.Equal(t, []string{
		"connection lost, trying again in 1s: the server is about to stop",
		"connection lost, trying again in 1s: the server is about to stop",
		"connection lost, trying again in 2s: the server is about to stop",
		"connection lost, trying again in 1s: the server is about to stop",
	}, withoutTime(p.err.String())[:4])
	require.Contains(t, p.err.String(), "ring example has been deleted")
}

// TestWatchOutlivesItsToken verifies that a stream whose token has expired is replaced, and that a refused token ends
// the command.
func TestWatchOutlivesItsToken(t *testing.T) {
	s := serve(t)
	streams := 0
	s.watch = func(stream pb.DiagnosticsService_WatchRingServer) error {
		if streams++; streams < 3 {
			if err := stream.Send(watched(int64(streams), "1111111111111111", pb.ShardState_SHARD_STATE_READY)); err != nil {
				return err
			}
		}

		return refuse(codes.Unauthenticated, "the token has expired", reason("UNAUTHENTICATED"))
	}
	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("watch", "example")...))
	require.Equal(t, 3, streams)
	require.Equal(t, []string{"2 of 2 shards available, fingerprint 1111111111111111"}, withoutTime(p.out.String()))
	require.Contains(t, p.err.String(), "error: the token has expired")
	require.NotContains(t, p.err.String(), "connection lost")
}

// withoutTime removes the time at the beginning of each line.
func withoutTime(text string) []string {
	var lines []string

	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		lines = append(lines, rest)
	}

	return lines
}

func TestWatchEnds(t *testing.T) {
	s := serve(t)
	s.watch = func(stream pb.DiagnosticsService_WatchRingServer) error {
		if err := stream.Send(watched(0, "1111111111111111", pb.ShardState_SHARD_STATE_READY)); err != nil {
			return err
		}

		return refuse(codes.NotFound, "ring example is gone", reason("RING_NOT_FOUND"))
	}
	p := newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("watch", "example", "-o", "json")...))
	require.Equal(t, 1, strings.Count(p.out.String(), "\n"), "one line per message")
	require.Contains(t, p.out.String(), `"revision":"0"`)

	s.watch = func(pb.DiagnosticsService_WatchRingServer) error {
		return refuse(codes.Unavailable, "not ready", reason("NOT_READY"))
	}
	p = newProgram(t)
	require.Equal(t, command.NoAnswer, p.run(t.Context(), s.at("watch", "example")...), "who begins is told at once")
}
