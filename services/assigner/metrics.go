package assigner

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/assigner/registration"
	"github.com/clusterring/clusterring/services/assigner/webhook"
)

// admissions are the metrics of the webhook, for all commands of the process.
var admissions = webhook.NewMetrics()

// arrivals shows for each ring whether API servers reach the webhook.
var arrivals = registration.NewArrivals()

func init() { metrics.Registry.MustRegister(append(admissions.Collectors(), arrivals)...) }
