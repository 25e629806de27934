package localplane_test

import (
	"os"
	"testing"

	"github.com/clusterring/clusterring/tools/localplane"
)

func TestMain(m *testing.M) { os.Exit(localplane.Main(m)) }

func TestShared(t *testing.T) {
	p := localplane.Shared(t)
	t.Log(p.Dir(), p.Namespace(t), p.ServiceKubeconfig(t, "leasemonitor"))
}
