// Package celcheck promises one thing.
package celcheck

import (
	_ "github.com/google/cel-go/cel"
	_ "github.com/clusterring/clusterring/services/internal/key"
)
