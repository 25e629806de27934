package system

import (
	"context"
	"path/filepath"
	"strconv"
	"time"

	"github.com/clusterring/clusterring/tools/lab/process"
)

// Each reconcile takes a while, and many are made at once, so that two of one object would overlap if they could.
const (
	workDuration = 250 * time.Millisecond
	concurrency  = 64
)

// Shard is a shard of the example controller, under one name.
type Shard struct {
	*process.Process
	health string
}

// HistoryFile is where a shard records its reconciles.
func (s *System) HistoryFile(shard string) string {
	return filepath.Join(s.StateDir, "history", shard+".jsonl")
}

// StartShards starts shards at once and waits until each holds its Lease.
func (s *System) StartShards(ctx context.Context, names ...string) ([]*Shard, error) {
	var shards []*Shard
	kubeconfig, err := s.ShardKubeconfig(ctx)
	if err != nil {
		return nil, err
	}
	free, err := process.FreePorts(2 * len(names))
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		health, metrics := free[2*i], free[2*i+1]
		p, err := s.start(name, "example", []string{
			"--kubeconfig=" + kubeconfig, "--ring=" + Ring, "--shard-name=" + name, "--lease-namespace=" + ShardNamespace,
			"--lease-duration=" + LeaseDuration.String(), "--lease-renew-deadline=" + renewDeadline.String(),
			"--lease-retry-period=" + retryPeriod.String(), "--history-file=" + s.HistoryFile(name), "--work-duration=" + workDuration.String(),
			"--concurrency=" + strconv.Itoa(concurrency), "--kube-api-qps=150", "--kube-api-burst=150", "--log-format=json",
			"--health-probe-bind-address=" + health, "--metrics-bind-address=" + metrics,
		})
		if err != nil {
			return shards, err
		}
		shards = append(shards, &Shard{Process: p, health: health})
	}
	for _, shard := range shards {
		if err := s.awaitReady(ctx, shard.Process, shard.health); err != nil {
			return shards, err
		}
	}
	return shards, nil
}

// ShardKubeconfig returns the path of the kubeconfig of the shards' service account.
func (s *System) ShardKubeconfig(ctx context.Context) (string, error) {
	if s.shardConf == "" {
		kubeconfig, err := s.Plane.ServiceAccountKubeconfig(ctx, ShardNamespace, ShardAccount)
		if err != nil {
			return "", err
		}
		s.shardConf = kubeconfig
	}
	return s.shardConf, nil
}
