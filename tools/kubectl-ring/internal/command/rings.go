package command

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

// Prefixes of names of objects, as in kubectl.
const (
	ringName  = "clusterring.sharding.timebertt.dev/"
	shardName = "lease.coordination.k8s.io/"
)

func (a *app) list() *cobra.Command {
	var o *output

	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls", "rings"},
		Short:   "List all rings and their status",
		Example: `  kubectl ring list
  kubectl ring list -o wide
  kubectl ring list -o json | jq -r '.rings[] | select(.availableShards == 0) | .name'`,
		Args:              arguments(0, 0),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.ask(cmd.Context(), func(s *asker) error {
				rings, err := allRings(cmd.Context(), s)
				if err != nil {
					return err
				}

				return a.printRings(o, rings)
			})
		},
	}
	o = a.addOutput(cmd, asWide, asJSON, asYAML, asName)

	return cmd
}

// allRings returns the rings of all pages.
func allRings(ctx context.Context, s *asker) ([]*pb.Ring, error) {
	var rings []*pb.Ring

	req := &pb.ListRingsRequest{PageSize: 500}
	for {
		res, err := s.ListRings(ctx, req)
		if err != nil {
			return nil, err
		}

		rings = append(rings, res.GetRings()...)
		if req.PageToken = res.GetNextPageToken(); req.GetPageToken() == "" {
			return rings, nil
		}
	}
}

func (a *app) printRings(o *output, rings []*pb.Ring) error {
	switch {
	case o.forProgram():
		return o.document(&pb.ListRingsResponse{Rings: rings})
	case o.format == asName:
		for _, ring := range rings {
			fmt.Fprintln(a.Out, ringName+ring.GetName())
		}

		return nil
	case len(rings) == 0:
		fmt.Fprintln(a.Err, "There is no ring. Create a ClusterRing to shard a controller.")
		return nil
	}

	table := o.table([]string{"NAME", "SHARDS", "READY", "ASSIGNED", "RESOURCES", "AGE"}, "NAMESPACES", "FINGERPRINT")

	for _, ring := range rings {
		row := []any{
			ring.GetName(), shardCount(ring), readiness(ring), conditionCell(condition(ring, "Assigned")), resources(ring),
			a.age(ring.GetCreateTime()),
		}
		if o.wide() {
			row = append(row, namespaces(ring), ring.GetFingerprint())
		}
		table.Row(row...)
	}

	return table.Flush()
}

func shardCount(ring *pb.Ring) render.Cell {
	cell := render.Cell{Text: fmt.Sprintf("%d/%d", ring.GetAvailableShards(), ring.GetShards())}
	if ring.GetAvailableShards() == 0 {
		cell.Style = render.Bad
	}

	return cell
}

func readiness(ring *pb.Ring) render.Cell {
	if ring.GetDeleting() {
		return render.Warn.In("being deleted")
	}

	return conditionCell(condition(ring, "Ready"))
}

func namespaces(ring *pb.Ring) string {
	if ring.GetNamespaceSelector() == "" {
		return "all"
	}

	return ring.GetNamespaceSelector()
}

func (a *app) get() *cobra.Command {
	var (
		o     *output
		count bool
	)

	cmd := &cobra.Command{
		Use:   "get [RING]",
		Short: "Show a ring with its shards, or all rings",
		Long: `Show a ring with its shards: their state, whether they get objects, and their share of the hash space.

RENEWED is how long ago the server saw the Lease of the shard change. A server that started recently shows a lower bound.

With --count-objects, it also shows how many objects and keys every shard has, and the key of most of its objects: objects with one
key, such as their namespace or the value of a label, cannot be at several shards. If it fails for one resource, or takes too long, the
output says so and the numbers are incomplete.

-o json prints one GetRingResponse per ring.`,
		Example: `  kubectl ring get example
  kubectl ring get example -o wide
  kubectl ring get example -o json | jq -r '.shards[] | select(.available | not) | .name'`,
		Args:              arguments(0, 1),
		ValidArgsFunction: a.completeRing,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ask(cmd.Context(), func(s *asker) error {
				return a.getRings(cmd.Context(), s, o, wantedRings{args, count})
			})
		},
	}
	cmd.Flags().BoolVar(&count, "count-objects", false,
		"count the main objects of every shard; the server lists all of them")

	o = a.addOutput(cmd, asWide, asJSON, asYAML, asName)

	return cmd
}

// wantedRings are the rings to get, all if there is no name, and whether to count their objects.
type wantedRings struct {
	names []string
	count bool
}

func (a *app) getRings(ctx context.Context, s *asker, o *output, of wantedRings) error {
	wanted := of.names
	if len(wanted) == 0 {
		rings, err := allRings(ctx, s)
		if err != nil {
			return err
		}

		if len(rings) == 0 {
			return a.printRings(o, nil)
		}

		wanted = names(rings)
	}

	for i, name := range wanted {
		res, err := s.GetRing(ctx, &pb.GetRingRequest{Name: name, CountObjects: of.count})
		if err != nil {
			return err
		}

		if i > 0 && (o.format == asTable || o.wide()) && !o.noHeaders {
			fmt.Fprintln(a.Out)
		}

		if err := a.printRing(o, res); err != nil {
			return err
		}
	}

	return nil
}

func (a *app) printRing(o *output, res *pb.GetRingResponse) error {
	switch {
	case o.forProgram():
		return o.document(res)
	case o.format == asName:
		fmt.Fprintln(a.Out, ringName+res.GetRing().GetName())

		for _, shard := range res.GetShards() {
			fmt.Fprintln(a.Out, shardName+shard.GetName())
		}

		return nil
	}

	if !o.noHeaders {
		if err := a.printHead(res.GetRing()); err != nil {
			return err
		}

		if len(res.GetShards()) == 0 {
			fmt.Fprintln(a.Out, "\nNo Lease has the label of the ring: no shard has joined.")
			return nil
		}
		fmt.Fprintln(a.Out)
	}

	if err := shardTable(o, res.GetShards()); err != nil || len(res.GetCounted()) == 0 {
		return err
	}

	return a.printLoads(o, res)
}

// printHead prints a ring without its shards.
func (a *app) printHead(ring *pb.Ring) error {
	head := &render.Table{W: a.Out, Colour: a.colour}
	head.Row("Ring", render.Bold.In(ring.GetName()))

	if ring.GetDeleting() {
		head.Row("Deleting", render.Warn.In(deletion(ring)))
	}
	head.Row("Resources", resources(ring))
	head.Row("Namespaces", namespaces(ring))

	if selector := ring.GetObjectSelector(); selector != "" {
		head.Row("Objects", selector)
	}
	head.Row("Shards", fmt.Sprintf("%d of %d available", ring.GetAvailableShards(), ring.GetShards()))
	head.Row("Fingerprint", ring.GetFingerprint())

	for _, c := range ring.GetConditions() {
		cell := conditionCell(c)
		if c.GetMessage() != "" {
			cell.Text += ": " + c.GetMessage()
		}
		head.Row(c.GetType(), cell)
	}

	return head.Flush()
}

// deletion returns where a ring that is being deleted says what it waits for.
func deletion(ring *pb.Ring) string {
	const until = "until no object has its labels; "

	switch c := condition(ring, "Assigned"); {
	case c.GetReason() == "Deleting":
		return until + "Assigned says how many have"
	case c.GetReason() == "ShardLabelInUse":
		return until + "no service acts for it"
	}

	return until + "its sharder does not say yet how many have: if this lasts, see that the rebalancer runs, or, with " +
		"spec.sharder Embedded, a shard: " +
		"kubectl -n sharding-system get pods -l app.kubernetes.io/name=rebalancer"
}

func shardTable(o *output, shards []*pb.Shard) error {
	table := o.table([]string{"SHARD", "STATE", "AVAILABLE", "SHARE", "PARTITIONS", "RENEWED", "PROBLEM"}, "NAMESPACE",
		"HOLDER", "LEASE")

	for _, shard := range shards {
		row := []any{
			shard.GetName(), shardState(shard), yes(shard.GetAvailable()), render.Percent(shard.GetShare()),
			shard.GetPartitions(),
			renewed(shard), render.Warn.In(shard.GetProblem()),
		}
		if o.wide() {
			row = append(row, shard.GetNamespace(), shard.GetHolder(), human(shard.GetLeaseDuration()))
		}
		table.Row(row...)
	}

	return table.Flush()
}

// printLoads prints how many objects and keys belong to every shard, and how unequal that is.
func (a *app) printLoads(o *output, res *pb.GetRingResponse) error {
	fmt.Fprintln(a.Out)

	table := o.table([]string{"SHARD", "OBJECTS", "", "KEYS", "LARGEST KEY", "ITS OBJECTS"})

	var total, most int64

	fullest := &pb.ShardLoad{}

	for _, load := range res.GetLoads() {
		total += load.GetObjects()

		if load.GetObjects() > most {
			most, fullest = load.GetObjects(), load
		}
	}

	for _, load := range res.GetLoads() {
		largest := ""
		if load.GetLargestKey() != nil {
			largest = keyText(load.GetLargestKey())
		}

		table.Row(load.GetShard(), load.GetObjects(), bar(float64(load.GetObjects()), float64(most)), load.GetKeys(), largest,
			load.GetLargestKeyObjects())
	}

	if err := table.Flush(); err != nil || o.noHeaders {
		return err
	}

	if total > 0 {
		mean := float64(total) / float64(len(res.GetLoads()))
		fmt.Fprintf(a.Out, "\nThe fullest shard, %s, has %.2f times as many objects as the mean. Its largest key has %s of "+
			"its objects: they cannot be split.\n",
			a.paint(render.Bold, fullest.GetShard()), float64(most)/mean,
			render.Percent(float64(fullest.GetLargestKeyObjects())/float64(most)))
	}

	if res.GetKeysLimited() {
		fmt.Fprintln(a.Out, a.paint(render.Warn, "There are more keys than the server counts: numbers of keys are lower "+
			"bounds."))
	}

	for _, c := range res.GetCounted() {
		text := fmt.Sprintf("%s: %d objects", qualified(c.GetGroup(), c.GetResource()), c.GetObjects())
		if c.GetKeyless() > 0 {
			text += a.paint(render.Warn, fmt.Sprintf("; %d lack their key, and are assigned by their names", c.GetKeyless()))
		}

		if c.GetProblem() != "" {
			text += a.paint(render.Warn, "; not all were counted: "+failure.Clean(c.GetProblem()))
		}

		fmt.Fprintln(a.Out, text)
	}

	return nil
}
