package system

import (
	"context"
	"path/filepath"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/process"
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
	for _, name := range names {
		command, err := s.ShardCommand(ctx, name)
		if err != nil {
			return shards, err
		}
		p, err := s.start(name, filepath.Base(command.Path), command.Args)
		if err != nil {
			return shards, err
		}
		shards = append(shards, &Shard{Process: p, health: command.Health})
	}
	for _, shard := range shards {
		if err := s.awaitReady(ctx, shard.Process, shard.health); err != nil {
			return shards, err
		}
	}
	return shards, nil
}

// ShardCommand is how a shard is started.
type ShardCommand struct {
	Path string
	Args []string
	// Health is the address at which it reports its health.
	Health string
}

// ShardCommand returns how to start a shard of that name.
func (s *System) ShardCommand(ctx context.Context, name string) (ShardCommand, error) {
	if s.shardConf == "" {
		kubeconfig, err := s.Plane.ServiceAccountKubeconfig(ctx, ShardNamespace, ShardAccount)
		if err != nil {
			return ShardCommand{}, err
		}
		s.shardConf = kubeconfig
	}
	free, err := process.FreePorts(2)
	if err != nil {
		return ShardCommand{}, err
	}
	return ShardCommand{
		Path: filepath.Join(s.BinDir, "example"),
		Args: []string{
			"--kubeconfig=" + s.shardConf, "--ring=" + Ring, "--shard-name=" + name, "--lease-namespace=" + ShardNamespace,
			"--lease-duration=" + LeaseDuration.String(), "--history-file=" + s.HistoryFile(name), "--work-duration=" + workDuration.String(),
			"--kube-api-qps=300", "--kube-api-burst=300", "--log-format=json",
			"--health-probe-bind-address=" + free[0], "--metrics-bind-address=" + free[1],
		},
		Health: free[0],
	}, nil
}

// workDuration is how long each reconcile takes at least, so that two of one object would overlap if they could.
const workDuration = 20 * time.Millisecond
