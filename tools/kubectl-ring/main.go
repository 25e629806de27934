// Command kubectl-ring is a kubectl plugin that shows which shard owns which object, and why.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/go-logr/logr"
	"golang.org/x/term"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/clusterring/clusterring/tools/kubectl-ring/internal/command"
)

func main() { os.Exit(run()) }

func run() int {
	klog.SetLogger(logr.Discard()) // the libraries also return the errors that they log

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	return command.Run(ctx, os.Args[1:], command.Streams{
		Out: os.Stdout, Err: os.Stderr,
		OutTerminal: term.IsTerminal(int(os.Stdout.Fd())),
		Getenv:      os.Getenv,
		Clock:       clock.RealClock{},
	})
}
