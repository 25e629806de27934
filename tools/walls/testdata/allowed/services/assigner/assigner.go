// Package assigner promises one thing.
package assigner

import (
	_ "github.com/clusterring/clusterring/proto/v1"
	_ "github.com/clusterring/clusterring/services/internal/admission"
	_ "github.com/clusterring/clusterring/services/internal/kit"
)
