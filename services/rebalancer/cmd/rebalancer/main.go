// Command rebalancer keeps every object at the shard to which it belongs.
package main

import (
	"os"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/rebalancer"
)

func main() { os.Exit(kit.Main(rebalancer.NewCommand())) }
