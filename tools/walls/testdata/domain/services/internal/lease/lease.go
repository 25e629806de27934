// Package lease promises one thing.
package lease

import (
	_ "github.com/clusterring/clusterring/pkg/shard"
	_ "github.com/clusterring/clusterring/services/internal/kit"
	_ "sigs.k8s.io/controller-runtime/pkg/client"
)
