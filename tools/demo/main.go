// Command demo shows on one machine what ClusterRing promises, with checks that can fail.
package main

import (
	"os"

	"github.com/clusterring/clusterring/tools/demo/internal/command"
)

func main() { os.Exit(command.Main()) }
