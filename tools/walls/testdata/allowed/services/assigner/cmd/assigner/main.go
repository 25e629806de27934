// Command assigner does one thing.
package main

import (
	_ "github.com/clusterring/clusterring/services/assigner"
)
