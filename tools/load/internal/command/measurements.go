package command

import (
	"slices"

	"github.com/clusterring/clusterring/tools/load/internal/measure/admission"
	"github.com/clusterring/clusterring/tools/load/internal/measure/balance"
	"github.com/clusterring/clusterring/tools/load/internal/measure/handover"
	"github.com/clusterring/clusterring/tools/load/internal/measure/moves"
	"github.com/clusterring/clusterring/tools/load/internal/measure/rest"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// measurements are all that there are, in the order in which they are made.
func measurements() []run.Measurement {
	return slices.Concat(
		admission.Measurements(),
		balance.Measurements(),
		moves.Measurements(),
		handover.Measurements(),
		rest.Measurements(),
	)
}
