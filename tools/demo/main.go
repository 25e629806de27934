// Command demo runs ClusterRing on one machine and verifies its guarantees.
package main

import (
	"os"

	"github.com/clusterring/clusterring/tools/demo/internal/command"
)

func main() { os.Exit(command.Main()) }
