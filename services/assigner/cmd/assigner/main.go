// Command assigner gives every new object of a ring its shard.
package main

import (
	"os"

	"github.com/clusterring/clusterring/services/assigner"
	"github.com/clusterring/clusterring/services/internal/kit"
)

func main() {
	os.Exit(kit.Main(assigner.NewCommand()))
}
