package main

import (
	_ "github.com/clusterring/clusterring/services/internal/key"
)
