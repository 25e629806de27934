package kit

import (
	"runtime"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// buildInfo tells dashboards which version of which service a process is.
var buildInfo = prometheus.NewGaugeVec(prometheus.GaugeOpts{
	Name: "clusterring_build_info",
	Help: "Always 1; the labels identify the service and its build.",
}, []string{"service", "version", "commit", "go_version"})

var registerBuildInfo = sync.OnceFunc(func() { metrics.Registry.MustRegister(buildInfo) })

func recordBuild(service string) {
	registerBuildInfo()
	buildInfo.WithLabelValues(service, Version, commit(), runtime.Version()).Set(1)
}
