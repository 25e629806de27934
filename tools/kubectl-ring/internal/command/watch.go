package command

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

const (
	// firstPause and longestPause are between two attempts to connect again. Each pause is twice as long as the one before.
	firstPause   = time.Second
	longestPause = 30 * time.Second
	// lastEvents is how many changes are shown below the live table.
	lastEvents = 8
	// clearScreen moves the cursor to the top left corner and clears what is below it.
	clearScreen = "\x1b[H\x1b[J"
	// clockFormat is how the time of a change is written.
	clockFormat = "15:04:05"
)

func (a *app) watch() *cobra.Command {
	var o *output
	cmd := &cobra.Command{
		Use:   "watch RING",
		Short: "Follow the shards of a ring as they come and go",
		Long: `Follow the shards of a ring as they come and go: a live table on a terminal, one line per change otherwise.

When the server stops or the connection is lost, another connection is made. It ends when the ring is deleted, or with ctrl-c.

-o json prints one WatchRingResponse per line.`,
		Example: `  kubectl ring watch example
  kubectl ring watch example >changes.log
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
	o = a.addOutput(cmd, asWide, asJSON, asYAML)
	return cmd
}

// watching follows one ring.
type watching struct {
	app  *app
	out  *output
	ring string

	last   *pb.WatchRingResponse // nil: nothing yet
	events []string
}

// run follows the ring until it is gone, ctx ends, or something is wrong that does not pass. What makes the first attempt
// fail is told at once: it may be a mistake. A connection that is lost later is made again.
func (w *watching) run(ctx context.Context, s *asker) error {
	pause := firstPause
	for {
		got, err := w.follow(ctx, s)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // ctrl-c is how it ends
		case w.last != nil && status.Code(err) == codes.NotFound:
			return failure.New("nothing: objects lose its labels", "ring %s has been deleted", w.ring)
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

// follow prints what one stream brings until it ends. got reports whether that was anything. The time that a call may take is for
// the first message: after that there may be nothing to tell for long.
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
		if errors.Is(err, io.EOF) { // a server that ends a stream well has no more to say; another may
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

// show prints what has changed.
func (w *watching) show(now *pb.WatchRingResponse) error {
	before := w.last
	w.last = now
	if w.out.forProgram() {
		return w.out.line(now)
	}
	at := w.app.Clock.Now().Format(clockFormat)
	changes := changes(before, now)
	if !w.app.OutTerminal {
		for _, change := range changes {
			fmt.Fprintf(w.app.Out, "%s  %s\n", at, change)
		}
		return nil
	}
	for _, change := range changes {
		w.events = append(w.events, at+"  "+change)
	}
	w.events = w.events[max(0, len(w.events)-lastEvents):]
	return w.draw(now, at)
}

// draw prints the live table in one write, so that it does not flicker.
func (w *watching) draw(now *pb.WatchRingResponse, at string) error {
	var b bytes.Buffer
	ring := now.GetRing()
	fmt.Fprintf(&b, "%s%s  %s, fingerprint %s, changed %s\n\n", clearScreen, w.app.paint(render.Bold, failure.Clean(ring.GetName())),
		available(ring), failure.Clean(ring.GetFingerprint()), at)
	table := w.out.table([]string{"SHARD", "STATE", "AVAILABLE", "SHARE", "", "PROBLEM"}, "NAMESPACE", "HOLDER", "PARTITIONS")
	table.W = &b
	largest := 0.0
	for _, shard := range now.GetShards() {
		largest = max(largest, shard.GetShare())
	}
	for _, shard := range now.GetShards() {
		row := []any{
			shard.GetName(), shardState(shard.GetState()), yes(shard.GetAvailable()), render.Percent(shard.GetShare()), bar(shard.GetShare(), largest),
			render.Warn.In(shard.GetProblem()),
		}
		if w.out.wide() {
			row = append(row, shard.GetNamespace(), shard.GetHolder(), shard.GetPartitions())
		}
		table.Row(row...)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(&b, "\n%s\n", strings.Join(w.events, "\n"))
	if _, err := w.app.Out.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

func available(ring *pb.Ring) string {
	return fmt.Sprintf("%d of %d shards available", ring.GetAvailableShards(), ring.GetShards())
}

// changes says what is different from the message before; nil: this is the first. The messages may come from different servers.
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
			text := shard.GetName() + " has no Lease any more"
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

// shardID tells Leases of the same name in different namespaces apart.
func shardID(shard *pb.Shard) string { return shard.GetNamespace() + "/" + shard.GetName() }

// shardChanges says what is different about a shard. was is nil if it is new.
func shardChanges(was, shard *pb.Shard) []string {
	var found []string
	state := shardState(shard.GetState()).Text
	if state == "" {
		state = "new"
	}
	switch {
	case shard.GetAvailable() && !was.GetAvailable():
		found = append(found, "+ "+shard.GetName()+" is available, "+state)
	case !shard.GetAvailable() && was.GetAvailable():
		found = append(found, "- "+shard.GetName()+" is not available any more, "+whyNot(shard))
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

// whyNot says why a shard is not available. Its state does not tell: the lease monitor writes it a moment later.
func whyNot(shard *pb.Shard) string {
	switch {
	case shard.GetProblem() != "":
		return shard.GetProblem()
	case shard.GetHolder() == "":
		return "it has given its Lease up"
	default:
		return "its Lease is held by " + shard.GetHolder()
	}
}

// ringChanges says what is different about a ring, but its shards.
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
