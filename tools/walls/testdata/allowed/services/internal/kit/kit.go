// Package kit promises one thing.
package kit

import (
	_ "github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	_ "github.com/clusterring/clusterring/services/internal/hashring"
	_ "k8s.io/utils/clock"
	_ "log/slog"
)
