// Command leasemonitor monitors the Leases of shards; see its --help.
package main

import (
	"os"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/leasemonitor"
)

func main() { os.Exit(kit.Main(leasemonitor.NewCommand())) }
