// Command load measures what sharding costs, compares each measurement with its floor, and writes a report.
package main

import (
	"os"

	"github.com/clusterring/clusterring/tools/load/internal/command"
)

func main() { os.Exit(command.Main()) }
