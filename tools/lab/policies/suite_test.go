// Package policies_test tests what the manifests of deploy/ make an API server allow and refuse.
package policies_test

import (
	"os"
	"testing"
	"time"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
)

const (
	soon = 30 * time.Second
	tick = 20 * time.Millisecond
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m, v1alpha1.AddToScheme)) }
