package command

import (
	"fmt"

	pb "github.com/clusterring/clusterring/proto/clusterring/diagnostics/v1alpha1"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/failure"
	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/render"
)

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

		table.Row(load.GetShard(), load.GetObjects(), bar(float64(load.GetObjects()), float64(most)), load.GetKeys(), largest, load.GetLargestKeyObjects())
	}

	if err := table.Flush(); err != nil || o.noHeaders {
		return err
	}

	if total > 0 {
		mean := float64(total) / float64(len(res.GetLoads()))
		fmt.Fprintf(a.Out, "\nThe fullest shard, %s, has %.2f times as many objects as the mean. Its largest key has %s of its objects: they cannot be split.\n",
			a.paint(render.Bold, fullest.GetShard()), float64(most)/mean, render.Percent(float64(fullest.GetLargestKeyObjects())/float64(most)))
	}

	if res.GetKeysLimited() {
		fmt.Fprintln(a.Out, a.paint(render.Warn, "There are more keys than the server counts: numbers of keys are lower bounds."))
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
