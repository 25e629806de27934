// Package command implements the command line of the load tool.
package command

import (
	"github.com/spf13/cobra"

	"github.com/clusterring/clusterring/tools/lab/commandline"
)

// Main runs the command line of this process and returns its exit code.
func Main() int { return commandline.Run(New()) }

const long = `load measures what sharding costs. It compares each measurement with its floor, the lowest possible cost. Measurement and floor
alternate in the same run, so that other load on the machine affects both equally.

  load run            runs the measurements, and writes a report with tables, plots, and machine-readable figures into a directory
  load report         writes this report again from the figures of an earlier run
  load noop-webhook   serves a floor: an admission webhook that adds a constant label. "load run" starts it automatically

The tool simulates shards: it holds Leases and acknowledges drains. One machine can hold thousands of shards and hundreds of thousands
of objects.`

// New returns the command.
func New() *cobra.Command {
	root := commandline.Root("load", "Measure what sharding costs, compared with the lowest possible cost", long)
	root.AddCommand(newRun(), newReport(), newNoopWebhook())

	return root
}
