// Package assigner is a case of the tests: nothing imports the model.
package assigner

import (
	_ "github.com/clusterring/clusterring/services/model"
)
