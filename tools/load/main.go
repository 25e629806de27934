// Command load measures what sharding costs, each measurement against its floor, and writes a report.
package main

import (
	"os"

	"github.com/clusterring/clusterring/tools/load/internal/command"
)

func main() { os.Exit(command.Main()) }
