// Package model is a case of the tests: it imports what decides.
package model

import (
	_ "github.com/clusterring/clusterring/services/internal/admission"
	_ "github.com/clusterring/clusterring/services/internal/lease"
	_ "github.com/clusterring/clusterring/services/internal/plan"
	_ "github.com/clusterring/clusterring/services/internal/takeover"
)
