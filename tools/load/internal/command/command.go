// Package command is the command line of the load tool.
package command

import (
	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/lab/commandline"
)

// Main runs the command line of this process and returns its exit code.
func Main() int { return commandline.Run(New()) }

const long = `load measures what sharding costs: each measurement against its floor, the least that it could cost, in the same run and in
turns, so that whatever else the machine does hits both alike.

  load run            measures, and writes a report with tables, plots and figures for machines into a directory
  load report         writes that report again, from the figures of an earlier run
  load noop-webhook   is a floor: an admission webhook that adds a constant label. "load run" starts it by itself

Shards are Leases that the tool holds, and drains that it acknowledges: thousands of shards and hundreds of thousands of objects
fit on one machine.`

// New returns the command.
func New() *cobra.Command {
	root := commandline.Root("load", "Measure what sharding costs, against the least that it could cost", long)
	root.AddCommand(newRun(), newReport(), newNoopWebhook())
	return root
}
