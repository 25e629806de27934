package command

import (
	"slices"

	"github.com/clusterring/clusterring/tools/load/internal/measure/admission"
	"github.com/clusterring/clusterring/tools/load/internal/measure/balance"
	"github.com/clusterring/clusterring/tools/load/internal/measure/continuity"
	"github.com/clusterring/clusterring/tools/load/internal/measure/handover"
	"github.com/clusterring/clusterring/tools/load/internal/measure/moves"
	"github.com/clusterring/clusterring/tools/load/internal/measure/rest"
	"github.com/clusterring/clusterring/tools/load/internal/run"
)

// measurements returns all measurements in the order in which they run.
func measurements() []run.Measurement {
	return slices.Concat(
		admission.Measurements(),
		balance.Measurements(),
		moves.Measurements(),
		handover.Measurements(),
		continuity.Measurements(),
		rest.Measurements(),
	)
}
