package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
)

const (
	// firstPause and longestPause limit the pause before a reconnect. Each pause is twice as long as the one before.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// clockFormat is the format of the time of a change.
	clockFormat = "15:04:05"
)

func (a *app) watch() *cobra.Command {
	var o *output

	cmd := &cobra.Command{
		Use:   "watch RING",
		Short: "Watch the shards of a ring",
		Long: `Watch the shards of a ring. It prints one line per change.

If the server stops or the connection is lost, the command reconnects. It ends when the ring is deleted, or with ctrl-c.

-o json prints one WatchRingResponse per line. Each is complete. Joined and left are empty in the first message after a reconnect.`,
		Example: `  kubectl ring watch example
  kubectl ring watch example -o json | jq -c '{joined, left}'`,
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeRing,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd.Context(), func(s *asker) error {
				w := &watching{app: a, out: o, ring: args[0]}
				return w.run(cmd.Context(), s)
			})
		},
	}
	o = a.addOutput(cmd, asJSON, asYAML)

	return cmd
}

// watching follows one ring.
type watching struct {
	app  *app
	out  *output
	ring string

	last *pb.WatchRingResponse // nil: nothing yet
}

// run follows the ring until it is deleted, ctx ends, or there is a permanent error. Any error of the first attempt is
// returned, because it may be a mistake of the user. If the connection is lost later, run reconnects.
func (w *watching) run(ctx context.Context, s *asker) error {
	pause := firstPause

	for {
		got, err := w.follow(ctx, s)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctrl-c is how it ends
		case w.last != nil && status.Code(err) == codes.NotFound:
			return failure.New("nothing: its labels are removed from all objects", "ring %s has been deleted", w.ring)
		case got && status.Code(err) == codes.Unauthenticated:
			continue // the token of the stream has expired, and a new stream has a new one
		case w.last == nil || status.Code(err) != codes.Unavailable:
			return err
		}

		if got {
			pause = firstPause
		}
		fmt.Fprintf(w.app.Err, "%s  connection lost, trying again in %s: %s\n",
			w.app.Clock.Now().Format(clockFormat), pause, failure.Clean(status.Convert(err).Message()))

		timer := w.app.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return nil
		}

		pause = min(2*pause, longestPause)
	}
}

// follow prints the messages of one stream until it ends. got reports whether there were any. The timeout applies to
// the first message, because there may be no changes for a long time after that.
func (w *watching) follow(ctx context.Context, s *asker) (got bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)

	answered := func() {}

	if s.timeout > 0 {
		timer := w.app.Clock.AfterFunc(s.timeout, func() { cancel(context.DeadlineExceeded) })
		defer timer.Stop()

		answered = func() { timer.Stop() }
	}

	got, err = w.read(ctx, s, answered)
	if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
		err = context.DeadlineExceeded
	}

	return got, err
}

// read reads one stream. It calls answered with each message.
func (w *watching) read(ctx context.Context, s *asker, answered func()) (got bool, err error) {
	stream, err := s.WatchRing(ctx, &pb.WatchRingRequest{Name: w.ring})
	if err != nil {
		return false, err
	}

	for {
		now, err := stream.Recv()
		if errors.Is(err, io.EOF) { // the server ended the stream without an error: reconnect
			return got, status.Error(codes.Unavailable, "the server has ended the stream")
		}

		if err != nil {
			return got, err //nolint:wrapcheck // run looks at the status
		}

		got = true
		answered()

		if err := w.show(now); err != nil {
			return got, err
		}
	}
}

// show prints the changes.
func (w *watching) show(now *pb.WatchRingResponse) error {
	before := w.last

	w.last = now
	if w.out.forProgram() {
		return w.out.line(now)
	}

	at := w.app.Clock.Now().Format(clockFormat)

	for _, change := range changes(before, now) {
		fmt.Fprintf(w.app.Out, "%s  %s\n", at, change)
	}

	return nil
}

func available(ring *pb.Ring) string {
	return fmt.Sprintf("%d of %d shards available", ring.GetAvailableShards(), ring.GetShards())
}

// changes describes the differences to the previous message. Nil: there is none. The messages can come from different
// servers.
func changes(before, now *pb.WatchRingResponse) []string {
	ring := now.GetRing()

	summary := fmt.Sprintf("%s, fingerprint %s", available(ring), failure.Clean(ring.GetFingerprint()))
	if before == nil {
		return []string{summary}
	}

	old := map[string]*pb.Shard{}
	for _, shard := range before.GetShards() {
		old[shardID(shard)] = shard
	}

	var found []string

	for _, shard := range now.GetShards() {
		was := old[shardID(shard)]
		delete(old, shardID(shard))
		found = append(found, shardChanges(was, shard)...)
	}

	for _, shard := range before.GetShards() {
		if old[shardID(shard)] != nil {
			text := shard.GetName() + " no longer has a Lease"
			if shard.GetAvailable() {
				text = "- " + text
			}

			found = append(found, text)
		}
	}

	found = append(found, ringChanges(before.GetRing(), ring)...)
	if before.GetRing().GetFingerprint() != ring.GetFingerprint() {
		found = append(found, summary)
	}

	for i := range found {
		found[i] = failure.Clean(found[i])
	}

	return found
}

// shardID distinguishes Leases with the same name in different namespaces.
func shardID(shard *pb.Shard) string { return shard.GetNamespace() + "/" + shard.GetName() }

// shardChanges describes the changes of a shard. was is nil if the shard is new.
func shardChanges(was, shard *pb.Shard) []string {
	var found []string

	state := shardState(shard).Text
	if state == "" {
		state = "new"
	}

	switch {
	case shard.GetAvailable() && !was.GetAvailable():
		found = append(found, "+ "+shard.GetName()+" is available, "+state)
	case !shard.GetAvailable() && was.GetAvailable():
		found = append(found, "- "+shard.GetName()+" is no longer available, "+whyNot(shard))
	case was == nil:
		found = append(found, shard.GetName()+" has a Lease, "+state)
	case was.GetState() != shard.GetState():
		found = append(found, shard.GetName()+" is "+state)
	}

	if shard.GetAvailable() == was.GetAvailable() && shard.GetProblem() != was.GetProblem() && shard.GetProblem() != "" {
		found = append(found, shard.GetName()+": "+shard.GetProblem())
	}

	return found
}

// whyNot describes why a shard is not available. It does not use the state, which the lease monitor writes a moment
// later.
func whyNot(shard *pb.Shard) string {
	switch {
	case shard.GetProblem() != "":
		return shard.GetProblem()
	case shard.GetStandby():
		return "it is inactive: enough other shards are active"
	case shard.GetStopping():
		return "it stops when its objects are drained"
	case shard.GetHolder() == "":
		return "it has released its Lease"
	default:
		return "its Lease is held by " + shard.GetHolder()
	}
}

// ringChanges describes the changes of a ring, except its shards.
func ringChanges(was, ring *pb.Ring) []string {
	var found []string
	if ring.GetDeleting() && !was.GetDeleting() {
		found = append(found, "the ring is being deleted")
	}

	if resources(was) != resources(ring) {
		found = append(found, "the ring shards "+resources(ring))
	}

	if was.GetNamespaceSelector() != ring.GetNamespaceSelector() {
		found = append(found, "the ring covers namespaces "+namespaces(ring))
	}

	if was.GetObjectSelector() != ring.GetObjectSelector() {
		found = append(found, "the ring selects "+cmp.Or(ring.GetObjectSelector(), "all")+" objects")
	}

	for _, c := range ring.GetConditions() {
		if condition(was, c.GetType()).GetStatus() != c.GetStatus() {
			text := c.GetType() + " is " + conditionCell(c).Text
			if c.GetMessage() != "" {
				text += ": " + c.GetMessage()
			}

			found = append(found, text)
		}
	}

	return found
}
