package localsystem

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
)

// Each reconcile takes a while, and many are made at once, so that two of one object would overlap if they could.
const (
	workDuration = 250 * time.Millisecond
	concurrency  = 64
)

// HistoryFile is where a shard records its reconciles.
func (s *System) HistoryFile(shard string) string {
	return filepath.Join(s.StateDir, "history", shard+".jsonl")
}

// StartShards starts shards of the example controller at once and waits until each holds its Lease. It returns those that were started
// even if there is an error.
func (s *System) StartShards(ctx context.Context, names ...string) (shards []*process.Process, err error) {
	var specs []services.Spec
	for _, name := range names {
		specs = append(specs, services.Spec{Name: name, Binary: "example", Namespace: ShardNamespace, Account: ShardAccount, Args: []string{
			"--ring=" + Ring, "--shard-name=" + name, "--lease-namespace=" + ShardNamespace,
			"--lease-duration=" + LeaseDuration.String(), "--lease-renew-deadline=" + renewDeadline.String(),
			"--lease-retry-period=" + retryPeriod.String(), "--history-file=" + s.HistoryFile(name), "--work-duration=" + workDuration.String(),
			"--concurrency=" + strconv.Itoa(concurrency), "--kube-api-qps=150", "--kube-api-burst=150",
		}})
	}

	err = s.group.Start(ctx, specs...)
	for _, name := range names {
		if p := s.group.Process(name); p != nil {
			shards = append(shards, p)
		}
	}

	return shards, err
}

// ShardKubeconfig returns the path of a kubeconfig for a shard that somebody else starts.
func (s *System) ShardKubeconfig(ctx context.Context, name string) (string, error) {
	return s.Plane.PodKubeconfig(ctx, ShardNamespace, ShardAccount, name)
}
