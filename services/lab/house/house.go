// Package house runs the binaries of the services for the tests of the laboratory, with the permissions of their
// service accounts, on the control plane of the test.
package house

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/clusterring/clusterring/pkg/apis/sharding/v1alpha1"
	"github.com/clusterring/clusterring/tools/testkit/localplane"
	"github.com/clusterring/clusterring/tools/testkit/process"
	"github.com/clusterring/clusterring/tools/testkit/services"
)

// Example is the program of shards.
const Example = "example"

// House is the services that a test needs, and the shards that it starts.
type House struct {
	*services.Group

	T     *testing.T
	Plane *localplane.Plane
	// Webhook and Queries are the addresses of the assigner's webhook and of ringquery.
	Webhook, Queries string
}

// built is the directory of the binaries, "" until they are needed.
var built string

// Main runs the tests of a package. It returns the exit code.
func Main(m *testing.M) int {
	code := localplane.Main(m, v1alpha1.AddToScheme)

	if err := os.RemoveAll(built); err != nil {
		panic(err)
	}

	return code
}

// binaries builds the services and the example once, and returns the directory they are in.
var binaries = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "house-")
	if err != nil {
		return "", fmt.Errorf("build the services: %w", err)
	}

	built = dir

	packages := map[string]string{Example: "./tools/example/cmd/example"}
	for _, name := range services.All {
		packages[name] = "./services/" + name + "/cmd/" + name
	}

	for name, path := range packages {
		build := exec.Command("go", "build", "-buildvcs=false", "-o", filepath.Join(dir, name), path)
		build.Dir, build.Stderr = localplane.Root(), os.Stderr

		build.Env = append(os.Environ(), "CGO_ENABLED=0")

		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build %s: %w", name, err)
		}
	}

	return dir, nil
})

// New returns a house without services. They and the shards stop at the end of the test.
func New(t *testing.T) *House {
	t.Helper()

	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}

	free, err := process.FreePorts(2)
	if err != nil {
		t.Fatal(err)
	}

	h := &House{T: t, Plane: localplane.Shared(t), Webhook: free[0], Queries: free[1]}
	h.Group = services.New(services.Options{Plane: h.Plane, BinDir: bin, LogDir: t.TempDir(), ShownLines: 20})
	t.Cleanup(func() {
		if err := h.Stop(); err != nil {
			t.Error(err)
		}
	})

	return h
}

// Begin starts the services without election of a leader, because on a slow machine, a flood of the API server ends the
// term of a leader. Queries are the arguments of ringquery.
func (h *House) Begin(queries ...string) {
	h.T.Helper()

	alone := "--leader-elect=false"
	if err := h.Start(h.T.Context(),
		services.Spec{Name: services.LeaseMonitor, Binary: services.LeaseMonitor, Args: []string{alone}},
		services.Spec{Name: services.Assigner, Binary: services.Assigner,
			Args: append(services.Webhook(h.Webhook, h.Webhook), alone)},
		services.Spec{Name: services.Rebalancer, Binary: services.Rebalancer,
			Args: []string{alone, "--settle-period=" + services.SettlePeriod.String()}},
		services.Spec{Name: services.RingQuery, Binary: services.RingQuery, Args: queries},
	); err != nil {
		h.T.Fatal(err)
	}
}
