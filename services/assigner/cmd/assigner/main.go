// Command assigner assigns a shard to every new object of a ring.
package main

import (
	"os"

	"github.com/clusterring/clusterring/services/assigner"
	"github.com/clusterring/clusterring/services/internal/kit"
)

func main() {
	os.Exit(kit.Main(assigner.NewCommand()))
}
