package leasemonitor

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/leasemonitor/pods"
	"github.com/clusterring/clusterring/services/leasemonitor/shardlease"
)

func init() {
	metrics.Registry.MustRegister(shardlease.Collectors()...)
	metrics.Registry.MustRegister(pods.Collectors()...)
}
