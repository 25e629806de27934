package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/sizing"
)

// most is the maximum number of shards that one query can add.
const most = 1000

func (a *app) simulate() *cobra.Command {
	var (
		o           *output
		add, remove []string
		count       bool
		load        sizing.Load
	)

	cmd := &cobra.Command{
		Use:   "simulate RING (--add N|NAME | --remove NAME)... [flags]",
		Short: "Show what would move if shards were added or removed",
		Long: `Show what would move if shards were added or removed. Nothing is changed. To rename a shard, remove its name and add another.

--add takes names, or a number of shards with arbitrary names. Flags may be repeated, or take several values separated by commas.
With --work, show how many shards a load needs, too, and what sharding costs. docs/sizing.md explains the figures.`,
		Example: `  kubectl ring simulate example --add 2
  kubectl ring simulate example --add shard-7,shard-8 --remove shard-1
  kubectl ring simulate example --remove shard-1 --add shard-x --count-objects
  kubectl ring simulate example --changes-per-second 40 --work 1s --workers 12`,
		Args:              arguments(1, 1),
		ValidArgsFunction: a.completeRing,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch sized := load != (sizing.Load{Workers: 1}); {
			case sized && !(load.ChangesPerSecond >= 0 && load.ChangesPerSecond < math.MaxInt32 && load.Work > 0 && load.Workers >= 1):
				return failure.New("use --work, and positive numbers", "the load is not known")
			case !sized && len(add)+len(remove) == 0:
				return failure.New("use --add or --remove", "nothing would change")
			}

			req := &pb.SimulateRequest{Ring: args[0], Remove: remove, CountObjects: count || load.Work > 0}

			return a.ask(cmd.Context(), func(s *asker) error {
				return a.simulateChange(cmd.Context(), s, o, request{req, add, load})
			})
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&add, "add", nil, "`number or name` of shards to add")
	flags.StringSliceVar(&remove, "remove", nil, "`name` of a shard to remove")
	flags.BoolVar(&count, "count-objects", false, "count the main objects of every shard; the server lists all of them")
	flags.Float64Var(&load.ChangesPerSecond, "changes-per-second", 0, "`number` of changes that the shards get")
	flags.DurationVar(&load.Work, "work", 0, "`time` for which a change keeps a worker busy; objects are counted, too")
	flags.IntVar(&load.Workers, "workers", 1, "`number` of workers of a shard (MaxConcurrentReconciles)")
	complete(cmd, "remove", a.completeShardOfArgument)
	o = a.addOutput(cmd, asWide, asJSON, asYAML)

	return cmd
}

// request is the change to simulate, with the shards to add as they were written, and the load to size the ring for.
type request struct {
	*pb.SimulateRequest
	add  []string
	load sizing.Load
}

func (a *app) simulateChange(ctx context.Context, s *asker, o *output, req request) error {
	if err := addShards(ctx, s, req); err != nil {
		return err
	}

	res, err := s.Simulate(ctx, req.SimulateRequest)
	if err != nil {
		return err
	}

	switch {
	case req.load.Work > 0:
		return a.printSized(o, res, req.load)
	case o.forProgram():
		return o.document(res)
	default:
		return a.printSimulation(o, res, req.GetCountObjects())
	}
}

// printSized prints the simulation, and how the shards carry a load after the change.
func (a *app) printSized(o *output, res *pb.SimulateResponse, load sizing.Load) error {
	shards, fullest, moved := 0, 0.0, 0.0

	for _, c := range res.GetCounted() {
		load.Objects += c.GetObjects()
		moved += float64(c.GetMoved())
	}

	for _, shard := range res.GetShards() {
		if shard.GetPartitionsAfter() > 0 {
			shards++
		}

		share := shard.GetShareAfter()
		if load.Objects > 0 {
			share = float64(shard.GetObjectsAfter()) / float64(load.Objects)
		}

		fullest = max(fullest, share)
	}

	if load.Needed() > sizing.MostShards {
		return failure.New("use more --workers, or less --work",
			"this load needs more than the %d shards that a ring may have", sizing.MostShards)
	}

	table, values := o.table([]string{"SIZING", "AFTER"}), []byte{}

	for _, f := range load.Figures(shards, fullest, moved) {
		table.Row(f.Title, f)
		values = fmt.Appendf(values, ",%q:%g", f.Name, f.Value)
	}

	if !o.forProgram() {
		return errors.Join(a.printSimulation(o, res, true), o.write([]byte("\n")), table.Flush())
	}

	text, err := render.JSON(res)
	if err != nil {
		return err
	}

	return o.emit(fmt.Appendf(text[:len(text)-1], `,"sizing":{%s}}`, values[1:]))
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

	taken := append(names(ring.GetShards()), req.GetAdd()...)

	for i := 1; number > 0; i++ {
		if name := fmt.Sprintf("new-%d", i); !slices.Contains(taken, name) {
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
