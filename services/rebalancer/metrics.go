package rebalancer

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/rebalancer/engine"
)

func init() { metrics.Registry.MustRegister(engine.Collectors()...) }
