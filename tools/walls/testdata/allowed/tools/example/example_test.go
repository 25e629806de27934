package main

import (
	_ "github.com/clusterring/clusterring/tools/lab/localplane"
)
