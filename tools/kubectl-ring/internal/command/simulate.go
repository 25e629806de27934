package command

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// most is the maximum number of shards that one query can add.
const most = 1000

func (a *app) simulate() *cobra.Command {
	var (
		o           *output
		add, remove []string
		count       bool
	)

	cmd := &cobra.Command{
		Use:   "simulate RING (--add N|NAME | --remove NAME)... [flags]",
		Short: "Show what would move if shards were added or removed",
		Long: `Show what would move if shards were added or removed. Nothing is changed. To rename a shard, remove its name and add another.

--add takes names, or a number of shards with arbitrary names. Flags may be repeated, or take several values separated by commas.`,
		Example: `  kubectl ring simulate example --add 2
  kubectl ring simulate example --add shard-7,shard-8 --remove shard-1
  kubectl ring simulate example --remove shard-1 --add shard-x --count-objects`,
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeRing,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(add)+len(remove) == 0 {
				return failure.New("use --add or --remove", "nothing would change")
			}

			req := &pb.SimulateRequest{Ring: args[0], Remove: remove, CountObjects: count}

			return a.ask(cmd.Context(), func(s *asker) error {
				return a.simulateChange(cmd.Context(), s, o, request{req, add})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&add, "add", nil, "`number or name` of shards to add")
	flags.StringSliceVar(&remove, "remove", nil, "`name` of a shard to remove")
	flags.BoolVar(&count, "count-objects", false, "count the main objects of every shard; the server lists all of them")
	complete(cmd, "remove", a.completeShardOfArgument)
	o = a.addOutput(cmd, asWide, asJSON, asYAML)

	return cmd
}

// request is the change to simulate, with the shards to add as they were written.
type request struct {
	*pb.SimulateRequest
	add []string
}

func (a *app) simulateChange(ctx context.Context, s *asker, o *output, req request) error {
	if err := addShards(ctx, s, req); err != nil {
		return err
	}

	res, err := s.Simulate(ctx, req.SimulateRequest)
	if err != nil {
		return err
	}

	if o.forProgram() {
		return o.document(res)
	}

	return a.printSimulation(o, res, req.GetCountObjects())
}

// addShards sets the shards to add. Shards without a name get names that no shard of the ring has.
func addShards(ctx context.Context, s *asker, req request) error {
	number := 0

	for _, written := range req.add {
		n, err := strconv.Atoi(written)
		switch {
		case err != nil:
			req.Add = append(req.Add, written)
		case n < 1 || n > most:
			return failure.New("name from 1 to "+strconv.Itoa(most), "--add: %d is not a valid number of shards", n)
		default:
			number += n
		}
	}

	if number == 0 {
		return nil
	}

	if number > most {
		return failure.New("name from 1 to "+strconv.Itoa(most)+" in all", "--add: %d shards are too many", number)
	}

	ring, err := s.GetRing(ctx, &pb.GetRingRequest{Name: req.GetRing()})
	if err != nil {
		return err
	}

	taken := map[string]bool{}
	for _, shard := range ring.GetShards() {
		taken[shard.GetName()] = true
	}

	for _, name := range req.GetAdd() {
		taken[name] = true
	}

	for i := 1; number > 0; i++ {
		if name := fmt.Sprintf("new-%d", i); !taken[name] {
			req.Add = append(req.Add, name)
			number--
		}
	}

	return nil
}

// bar draws a share. The bar of the largest share is 16 characters long.
func bar(share, largest float64) string {
	if largest == 0 {
		return ""
	}

	return render.Bar(share/largest, 16)
}

func (a *app) printSimulation(o *output, res *pb.SimulateResponse, counted bool) error {
	columns := []string{"SHARD", "BEFORE", "AFTER", "", "CHANGE"}
	if counted {
		columns = append(columns, "OBJECTS BEFORE", "AFTER", "CHANGE")
	}

	table := o.table(columns, "PARTITIONS BEFORE", "AFTER")

	largest := 0.0
	for _, shard := range res.GetShards() {
		largest = max(largest, shard.GetShareBefore(), shard.GetShareAfter())
	}

	for _, shard := range res.GetShards() {
		row := []any{
			shard.GetName(), shareText(shard.GetPartitionsBefore(), shard.GetShareBefore()),
			shareText(shard.GetPartitionsAfter(), shard.GetShareAfter()),
			bar(shard.GetShareAfter(), largest), changeCell(shard),
		}
		if counted {
			row = append(row, shard.GetObjectsBefore(), shard.GetObjectsAfter(),
				fmt.Sprintf("%+d", shard.GetObjectsAfter()-shard.GetObjectsBefore()))
		}

		if o.wide() {
			row = append(row, shard.GetPartitionsBefore(), shard.GetPartitionsAfter())
		}
		table.Row(row...)
	}

	if err := table.Flush(); err != nil || o.noHeaders {
		return err
	}
	fmt.Fprintf(a.Out, "\n%s of the hash space would move; in any scheme with equal shares, at least %s must move.\n",
		a.paint(render.Bold, render.Percent(res.GetMoved())), render.Percent(res.GetLeast()))

	if !slices.ContainsFunc(res.GetShards(), func(shard *pb.SimulatedShard) bool {
		return shard.GetPartitionsAfter() > 0
	}) {
		fmt.Fprintln(a.Out, a.paint(render.Warn, "No available shard would be left: objects would stay where they are, and "+
			"nobody would work on them."))
	}

	for _, c := range res.GetCounted() {
		text := fmt.Sprintf("%s: %d of %d objects would move", qualified(c.GetGroup(), c.GetResource()), c.GetMoved(),
			c.GetObjects())
		if c.GetProblem() != "" {
			text += a.paint(render.Warn, "; not all were counted: "+failure.Clean(c.GetProblem()))
		}
		fmt.Fprintln(a.Out, text)
	}

	if o.wide() {
		fmt.Fprintf(a.Out, "fingerprint: %s, then %s\n", res.GetFingerprintBefore(), res.GetFingerprintAfter())
	}

	return nil
}

func shareText(partitions int32, share float64) string {
	if partitions == 0 {
		return "-"
	}

	return render.Percent(share)
}

func changeCell(shard *pb.SimulatedShard) render.Cell {
	switch {
	case shard.GetPartitionsBefore() == 0:
		return render.Good.In("comes")
	case shard.GetPartitionsAfter() == 0:
		return render.Bad.In("goes")
	default:
		return render.Cell{Text: fmt.Sprintf("%+.1f%%", (shard.GetShareAfter()-shard.GetShareBefore())*100)}
	}
}
