package assigner

import (
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/clusterring/clusterring/services/assigner/webhook"
)

// admissions are the metrics of the webhook, for all commands of the process.
var admissions = webhook.NewMetrics()

func init() { metrics.Registry.MustRegister(admissions.Collectors()...) }
