package localsystem

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/clusterring/clusterring/tools/demo/internal/balance"
	"github.com/clusterring/clusterring/tools/lab/process"
	"github.com/clusterring/clusterring/tools/lab/services"
)

// Names of what is started. The assigner and ringquery have two replicas. RingQuery1 answers everybody on this machine, without
// TLS; RingQuery2 has TLS and wants to know who asks.
const (
	LeaseMonitor = services.LeaseMonitor
	Assigner1    = "assigner-1"
	Assigner2    = "assigner-2"
	Rebalancer   = services.Rebalancer
	RingQuery1   = "ringquery-1"
	RingQuery2   = "ringquery-2"
)

// startServices starts all services at once and waits until they are ready.
func (s *System) startServices(ctx context.Context) error {
	s.group = services.New(services.Options{
		Plane: s.Plane, BinDir: s.BinDir, LogDir: filepath.Join(s.StateDir, logs),
		Waiting: func(name, answer string) { s.Console.Progress("waiting until %s is ready: %s", name, answer) },
	})

	const ports = 4

	free, err := process.FreePorts(ports)
	if err != nil {
		return err
	}

	webhook1, webhook2 := free[0], free[1]

	s.open, s.guarded = free[2], free[3]
	if s.front, err = balance.Listen(webhook1, webhook2); err != nil {
		return err
	}

	if s.cert, err = services.NewCertificate(s.StateDir, RingQuery2, time.Now()); err != nil {
		return err
	}

	begin := time.Now()

	err = s.group.Start(ctx,
		services.Spec{Name: LeaseMonitor, Binary: services.LeaseMonitor},
		services.Spec{Name: Assigner1, Binary: services.Assigner, Args: services.Webhook(webhook1, s.front.Address())},
		services.Spec{Name: Assigner2, Binary: services.Assigner, Args: services.Webhook(webhook2, s.front.Address())},
		services.Spec{Name: Rebalancer, Binary: services.Rebalancer, Args: []string{"--settle-period=" + services.SettlePeriod.String()}},
		services.Spec{Name: RingQuery1, Binary: services.RingQuery, Args: services.OpenQueries(s.open)},
		services.Spec{Name: RingQuery2, Binary: services.RingQuery, Args: []string{
			"--grpc-bind-address=" + s.guarded, "--ca-mode=file", "--tls-cert-file=" + s.cert.CertFile, "--tls-private-key-file=" + s.cert.KeyFile,
			"--access-cache-ttl=0s", // who gets a right has it at once
		}},
	)
	if err != nil {
		return err
	}
	s.Console.OK("leasemonitor, 2 × assigner, rebalancer and 2 × ringquery are ready, each with a token of its own service account (%.1f s)",
		time.Since(begin).Seconds())

	return nil
}

// StartServices starts services that do not run, at once, and waits until they are ready.
func (s *System) StartServices(ctx context.Context, names ...string) error {
	return s.group.Resume(ctx, names...)
}

// StopServices asks services to stop, at once, and waits until they have.
func (s *System) StopServices(names ...string) error {
	errs := []error{s.group.End(names...)}
	for _, name := range names {
		if err := s.group.Process(name).Err(); err != nil {
			errs = append(errs, &services.FaultError{Process: name, Err: fmt.Errorf("%s did not stop in order: %w", name, err)})
		}
	}

	return errors.Join(errs...)
}

// Ready returns an error for each service that does not say it is ready, with its answer.
func (s *System) Ready(ctx context.Context) error {
	return s.group.Ready(ctx, LeaseMonitor, Assigner1, Assigner2, Rebalancer, RingQuery1, RingQuery2)
}

// QueryAddress returns the address of the query service that answers everybody, without TLS.
func (s *System) QueryAddress() string { return s.open }

// GuardedQueryAddress returns the address of the query service that has TLS and answers those who have the right to ask. The file
// ca is PEM and has its certificate, which vouches for itself.
func (s *System) GuardedQueryAddress() (address, ca string) { return s.guarded, s.cert.CertFile }
