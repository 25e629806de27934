// Package celcheck promises one thing.
package celcheck

import (
	_ "github.com/clusterring/clusterring/services/internal/key"
	_ "github.com/google/cel-go/cel"
)
