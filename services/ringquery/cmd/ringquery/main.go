// Command ringquery answers over gRPC who owns what, and why; see its --help.
package main

import (
	"os"

	"github.com/clusterring/clusterring/services/internal/kit"
	"github.com/clusterring/clusterring/services/ringquery"
)

func main() { os.Exit(kit.Main(ringquery.NewCommand())) }
